"""Checks that contenders did the same work: losses and gradient norms of every step, with a tolerance per dtype."""
import math

# Largest difference of losses in nats, and of gradient norms as a share.
#
# fp32: all start from the same weights, so losses differ by the order of sums (1e-6 in a few steps). A float32 sum of
# millions of squares, as torch's norm is, is off by 1e-4 (JAX and Lehr agree to 1e-7).
# bf16: numbers have 8 bits (4e-3); a loss is a mean of many, whose errors cancel, and a norm may itself be a bfloat16.
# amp: weights are float32, arithmetic is bfloat16.
TOLERANCE = {"fp32": (1e-4, 1e-3), "bf16": (1e-2, 3e-2), "amp": (1e-2, 3e-2)}


def gaps(ours, theirs):
    """Returns the largest difference of losses, and the largest relative one of gradient norms; nan is the largest."""
    if len(ours["losses"]) != len(theirs["losses"]) or len(ours["grad_norms"]) != len(theirs["grad_norms"]):
        return math.inf, math.inf
    losses = [abs(x - y) for x, y in zip(ours["losses"], theirs["losses"])]
    norms = [abs(x - y) / abs(x) for x, y in zip(ours["grad_norms"], theirs["grad_norms"])]
    return tuple(max(found, key=lambda gap: math.inf if math.isnan(gap) else gap) for found in (losses, norms))


def tolerance(ours, theirs, dtype):
    """Returns the tolerance for losses and norms. A contender whose "computes" names another dtype has that one's."""
    each = [TOLERANCE[result.get("computes", dtype)] for result in (ours, theirs)]
    return max(t[0] for t in each), max(t[1] for t in each)


def compare(ours, theirs, dtype):
    """Compares results of equal work, [(ours, theirs)] of all rounds pairwise. Returns the text of both gaps, and what is
    wrong with them ("" if nothing is)."""
    loss = norm = 0.0
    wrong = ""
    for x, y in zip(ours, theirs):
        found, allowed = gaps(x, y), tolerance(x, y, dtype)
        loss, norm = max(loss, found[0], key=_rank), max(norm, found[1], key=_rank)
        for what, gap, most in zip(("losses", "gradient norms"), found, allowed):
            if not gap <= most:
                wrong = f"{what} differ by {gap:.1e}, more than {most:.0e}"
    return f"{loss:.0e}, {norm:.0e}" + (", too much" if wrong else ""), wrong


def _rank(gap):
    return math.inf if math.isnan(gap) else gap
