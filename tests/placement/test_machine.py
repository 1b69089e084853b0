"""Which devices there are."""

from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.placement.machine import _gpu, _read_proc, kind_named, parse_cluster, ray_inventory, this_machine
from roll.placement.records import Node


def test_a_cluster_is_parsed_from_a_short_text() -> None:
    both = parse_cluster("2x8xH200")
    assert [(node.name, node.kind, node.num_devices) for node in both.nodes] == [
        ("node 0", "H200", 8),
        ("node 1", "H200", 8),
    ]
    assert both.nodes[0].memory == 139 * 2**30
    assert both.locate(0) == (0, 0) and both.locate(9) == (1, 1)
    assert parse_cluster("a100").num_devices == 1 and parse_cluster("4xcpu").gpus is False
    mixed = parse_cluster("1x8xH100 + 2x4xA100")
    assert [node.kind for node in mixed.nodes] == ["H100", "A100", "A100"] and mixed.locate(13) == (2, 1)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("8*H200", "is no cluster; give nodes x devices x kind, such as 2x8xH200"),
        ("8xH201", "--cluster: no kind of device is named 'H201'; did you mean 'H20"),
        ("8xh1000", "--cluster: no kind of device is named 'h1000'; did you mean 'H100'"),
        ("8xcpus", "--cluster: no kind of device is named 'cpus'; did you mean 'cpu'"),
        ("0xH200", "has no devices"),
        ("", "is no cluster"),
    ],
)
def test_an_invalid_cluster_is_an_error(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_cluster(text)


def test_kinds_are_recognised_by_the_names_of_drivers() -> None:
    for told, kind in {
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA A100-SXM4-80GB": "A100",
        "Tesla V100-PCIE": "V100",
    }.items():
        found = kind_named(told)
        assert found is not None and found.name == kind
    assert kind_named("GeForce GTX 1080") is None


def test_this_machine_has_devices_and_the_configured_number_of_slots() -> None:
    found = this_machine(cpu_slots=6)
    assert found.num_devices == 6 or found.gpus
    assert all(node.memory > 2**20 for node in found.nodes)


def test_a_ray_cluster_has_its_gpu_nodes_in_order_and_without_any_its_cpus() -> None:
    head = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0, "memory": 8e9}}
    gpus = {"GPU": 8.0, "CPU": 64.0, "accelerator_type:H100": 1.0}
    second = {"NodeID": "c", "Alive": True, "NodeManagerAddress": "10.0.0.3", "Resources": gpus}
    first = {"NodeID": "b", "Alive": True, "NodeManagerAddress": "10.0.0.2", "Resources": gpus}
    gone = {"NodeID": "d", "Alive": False, "NodeManagerAddress": "10.0.0.4", "Resources": gpus}
    found = ray_inventory([head, second, first, gone])
    assert [node.id for node in found.nodes] == ["b", "c"] and found.num_devices == 16 and found.gpus
    assert ray_inventory([head]).nodes == (
        Node(name="10.0.0.1", id="a", kind="cpu", num_devices=4, memory=2_000_000_000),
    )
    assert ray_inventory([head], cpu_slots=2).num_devices == 2


def test_without_nvidia_smi_the_drivers_files_are_read(tmp_path: Path) -> None:
    for place, model in enumerate(("NVIDIA H200", "Own Device 3000")):
        (tmp_path / f"0000:0{place}").mkdir()
        (tmp_path / f"0000:0{place}" / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 92\n")
    assert _read_proc(tmp_path) == [("H200", 139 * 2**30), ("Own Device 3000", 0)]
    assert _read_proc(tmp_path / "nowhere") == []


def test_the_output_of_nvidia_smi_is_parsed() -> None:
    assert _gpu("NVIDIA H100 80GB HBM3, 81559") == ("H100", 81559 * 2**20)
    assert _gpu("NVIDIA GB10, [N/A]") == ("NVIDIA GB10", 0)
