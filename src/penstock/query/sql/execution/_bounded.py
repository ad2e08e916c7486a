"""Which statements hold their values within the engine's memory limit: the others run in a process of their own.

The engine counts its tables, sorts and joins, and not the values that a function builds for one row, nor the states of
some aggregates. A function that is not listed here is taken for one of those.
"""

from collections.abc import Iterable
from typing import Any

from penstock.query.sql._ast import Node, nodes

_NAMES = """
abs acos age any_value approx_count_distinct array_contains array_extract array_length array_position asin atan atan2
avg base64 bit_and bit_count bit_length bit_or bit_xor bool_and bool_or bytes cbrt ceil ceiling century chr coalesce
contains corr cos cot count count_if count_star covar_pop covar_samp cume_dist current_date current_localtime
current_localtimestamp date date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day
dayname dayofmonth dayofweek dayofyear decade decode degrees dense_rank divide element_at ends_with epoch epoch_ms
epoch_ns epoch_us era even exp extract favg first first_value floor from_base64 fsum gamma gcd get_current_time
get_current_timestamp greatest grouping grouping_id hash hour if ifnull ilike_escape instr isfinite isinf isnan isodow
isoyear jaccard jaro_similarity json_array_length json_exists json_extract json_extract_path json_extract_path_text
json_extract_string json_type json_valid kurtosis lag last last_day last_value lcm lead least left len length lgamma
like_escape list_any_value list_avg list_contains list_count list_element list_extract list_has list_indexof list_max
list_min list_position list_sum ln log log10 log2 logb lower ltrim make_date make_time make_timestamp max mean
microsecond millennium millisecond min minute mod month monthname multiply nanosecond not_ilike_escape not_like_escape
now nth_value ntile nullif octet_length ord percent_rank pi position pow power prefix quarter radians random rank
regexp_extract regexp_full_match regexp_matches regr_slope reverse right round row_number rtrim second sign signbit
sin skewness split_part sqrt starts_with stddev stddev_pop stddev_samp strftime strip_accents strlen strpos strptime
struct_extract substr substring subtract suffix sum sum_no_overflow tan timezone to_timestamp today trim trunc try
try_strptime typeof unicode unnest upper uuid var_pop var_samp variance week weekday weekofyear xor year yearweek
"""
_BOUNDED = frozenset(_NAMES.split())
_GROWING = frozenset(["||", "array_value", "concat", "concat_ws", "list_value", "row", "struct_pack"])
"""Functions whose result is as large as their arguments together: each may double a value."""
_MAX_GROWING = 8
_MAX_TABLES = 12
"""The engine plans the order of so many joins quickly."""


def is_bounded(node: Node) -> bool:
    """Whether a statement is one that the engine's own limits end."""
    growing = tables = 0
    recursive = False
    for each in nodes(node, _below):
        kind = each.get("type")
        if each.get("class") in ("FUNCTION", "WINDOW"):
            name = str(each["function_name"]).lower()
            growing += name in _GROWING
            if not (name in _BOUNDED or name in _GROWING or name[0] == "~" or each.get("is_operator")):
                return False
        tables += kind in ("BASE_TABLE", "SUBQUERY", "TABLE_FUNCTION")
        recursive = recursive or kind == "RECURSIVE_CTE_NODE"
        if len(each.get("group_sets") or ()) > 1:
            return False
    return growing <= (0 if recursive else _MAX_GROWING) and tables <= _MAX_TABLES


def _below(node: Node) -> Iterable[Any]:
    """A function in FROM gives rows, which the engine bounds: only its arguments are looked at."""
    return node["function"]["arguments"] if node.get("type") == "TABLE_FUNCTION" else node.values()
