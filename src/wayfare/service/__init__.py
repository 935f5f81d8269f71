"""The mobility support service: roaming on top of other people's publish/subscribe systems."""
