"""The data pipeline on Spark: everything here touches a DataFrame, and nothing else does."""
