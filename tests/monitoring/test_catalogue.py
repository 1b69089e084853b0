"""Names and labels follow the conventions of Prometheus, and the page of operations has all of them."""

import re
from pathlib import Path

import pytest

from roll.monitoring.catalogue import FAMILIES, MetricFamily, table
from roll.monitoring.samples import Scrape

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
MILLI = re.compile(r"_(ms|milliseconds|mb|kb|gb|minutes|percent)\b")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_name_has_the_prefix_a_base_unit_and_the_suffix_of_its_type(family: MetricFamily) -> None:
    assert re.fullmatch(r"roll_[a-z][a-z_]*[a-z]", family.name) and not MILLI.search(family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert family.name.endswith("_info") == (family.kind == "info")
    assert family.help.endswith(".") and len(family.help) <= 120
    assert not set(family.labels) & {"instance", "job", "group", "task", "session", "worker", "pid"}, "unbounded"


def test_the_page_of_operations_has_the_table_of_the_catalogue() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "copy the output of roll.monitoring.catalogue.table()"


def test_a_value_with_other_labels_than_the_catalogue_has_is_a_bug() -> None:
    scrape = Scrape()
    with pytest.raises(AssertionError):
        scrape.set("roll_step", 1.0, "extra")
    with pytest.raises(KeyError):
        scrape.set("roll_unknown", 1.0)
