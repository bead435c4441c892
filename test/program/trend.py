"""The trend of a noisy series that should stay level: Theil and Sen's slope with its confidence interval."""
import math, statistics

BLOCKS = 100


def block_medians(points):
    """Returns at most BLOCKS points (x, y): the medians of equally long stretches, which neighbouring noise shares."""
    size = max(1, math.ceil(len(points) / BLOCKS))
    return [tuple(map(statistics.median, zip(*points[first:first + size]))) for first in range(0, len(points), size)]


def theil_sen(points):
    """Returns the median slope of all pairs of points (x, y), and the bounds of its 95 % confidence interval.

    Sen, 1968: the interval follows from the distribution of Kendall's tau for independent values without a trend. Few values
    that are far off, such as peaks while a checkpoint is written, change neither.
    """
    points = block_medians(points)
    slopes = sorted((y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1:] if x2 != x1)
    if not slopes:
        raise ValueError("a trend needs points at two places")
    n = len(points)
    spread = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return statistics.median(slopes), slopes[low], slopes[high]
