"""docs/data.md names every source and every key of it, and its configs are configs."""

import re
from pathlib import Path

import yaml

from rayfl.config import load_config
from rayfl.config.data import DATA, ColumnKeys, DataConfig

PAGE = (Path(__file__).parent.parent / "docs" / "data.md").read_text()
ROWS = {
    row[0].strip("` "): row for row in re.findall(r"^\| (`[a-z].*?`) \| (.*?) \| ?(.*?) ?\| `(.*)` \|$", PAGE, re.M)
}


def test_the_table_has_every_source_with_a_config_that_loads() -> None:
    assert set(ROWS) == {*DATA, "package.module:function"} - {"python"}
    for source, (_, _, _, line) in ROWS.items():
        config = load_config(yaml.safe_load(line))
        assert config.data.source == source or source == "package.module:function"


def test_the_table_names_the_keys_that_each_source_reads() -> None:
    tables = set(ColumnKeys.model_fields) - set(DataConfig.model_fields)
    for source, (_, _, keys, _) in ROWS.items():
        if source not in DATA:
            continue
        named = set(re.findall(r"`(\w+)`", keys))
        if "those of tables" in keys:
            named |= tables
        if "as `parquet`" in keys:
            named = (named - {"parquet"}) | set(re.findall(r"`(\w+)`", ROWS["parquet"][2]))
        read = set(DATA[source].model_fields) - {"source", "limit", "normalise"}
        assert named == (read if "root" in named else read - {"root"}), source


def test_the_other_configs_of_the_page_load() -> None:
    lines = re.findall(r"^    ((?:data|partition): \{.*\})$", PAGE, re.M)
    assert len(lines) == 3
    for line in lines:
        load_config(yaml.safe_load(line))
