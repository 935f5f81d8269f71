"""Checks of the usual forms: what happens never, is less, stays flat, rises, grows, is the most, is a straight line."""

from __future__ import annotations

from itertools import pairwise
from statistics import linear_regression

from wayfare.studies.study import Check, Rows, Verdict


def never(metric: str, series: str) -> Check:
    """A promise of ours."""

    def verdict(rows: Rows) -> Verdict:
        count, runs = rows.total(metric, series), len(rows.of(series))
        return Verdict(runs > 0 and count == 0, f"{count} in {runs} runs")

    return Check(f"{series}: {metric.replace('_', ' ')} never", verdict, "ours")


def less(
    metric: str, one: str, other: str, times: float = 1, says: str = "", **about: str
) -> Check:
    """`one` needs less than `other`, by a factor, at every point."""

    def verdict(rows: Rows) -> Verdict:
        ratios = [
            rows.mean(metric, other, x) / (rows.mean(metric, one, x) or 1e-9) for x in rows.xs()
        ]
        return Verdict(
            min(ratios) > times, f"{other} has {min(ratios):.3g} to {max(ratios):.3g} times {one}'s"
        )

    by = f"{times:g} times " if times != 1 else ""
    return Check(says or f"{other} costs more than {by}{one}", verdict, **about)


def flat(metric: str, series: str, within: float, says: str, source: str = "published") -> Check:
    """The largest is hardly more than the smallest."""

    def verdict(rows: Rows) -> Verdict:
        curve = rows.curve(metric, series)
        growth = (max(curve) or 1e-9) / (min(curve) or 1e-9)
        return Verdict(growth <= within, f"from {min(curve):.4g} to {max(curve):.4g}")

    return Check(says, verdict, source)


def rises(metric: str, series: str, says: str, *, down: bool = False) -> Check:
    """From the first value to the last."""

    def verdict(rows: Rows) -> Verdict:
        curve = rows.curve(metric, series)
        first, last = curve[0], curve[-1]
        return Verdict(last < first if down else last > first, f"{first:.4g} -> {last:.4g}")

    return Check(says, verdict)


def grows(metric: str, series: str, says: str) -> Check:
    """A promise of ours: from each value to the next."""

    def verdict(rows: Rows) -> Verdict:
        curve = rows.curve(metric, series)
        return Verdict(
            all(a < b for a, b in pairwise(curve)),
            " -> ".join(f"{one:.3g}" for one in curve),
        )

    return Check(says, verdict, "ours")


def most(metric: str, series: str, says: str) -> Check:
    """A promise of ours: nothing else needs as much, at any point."""

    def verdict(rows: Rows) -> Verdict:
        ratios = [
            rows.mean(metric, series, x) / rows.mean(metric, other, x)
            for x in rows.xs()
            for other in rows.series()
            if other != series
        ]
        return Verdict(
            min(ratios) >= 1, f"{min(ratios):.3g} to {max(ratios):.3g} times that of others"
        )

    return Check(says, verdict, "ours")


def linear(metric: str, series: str, says: str) -> Check:
    """About a straight line."""

    def verdict(rows: Rows) -> Verdict:
        xs, ys = rows.xs(), rows.curve(metric, series)
        line = linear_regression(xs, ys)
        off = max(
            abs(line.slope * x + line.intercept - y) / max(ys) for x, y in zip(xs, ys, strict=True)
        )
        return Verdict(off <= 0.1, f"within {off:.1%} of a straight line")

    return Check(says, verdict)
