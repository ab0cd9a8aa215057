"""Heads of attention on several devices, as engines place them."""

from __future__ import annotations


def undivided(whose: str, heads: int, ranks: int) -> str:
    """What is wrong with so many heads on so many ranks; empty if nothing, or nothing is known."""
    if not heads or heads % ranks == 0:
        return ""
    return f"the {heads} heads of the {whose} do not divide among {ranks} ranks"


def uncopied(whose: str, heads: int, ranks: int) -> str:
    """The same of heads of keys and values, which are copied where they are fewer than ranks."""
    if not heads or heads % ranks == 0 or ranks % heads == 0:
        return ""
    said = f"the {heads} heads of keys and values of the {whose}"
    return f"{said} neither divide among {ranks} ranks nor are copied evenly"
