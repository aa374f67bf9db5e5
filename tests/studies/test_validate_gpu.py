"""`meshrt validate` on GPUs: rows are clocks of runs, PyTorch's operators are right, and the devices hold."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrt.errors import UsageError
from meshrt.gpu.gpu import Gpu
from meshrt.gpu.presets import find_gpu
from meshrt.gpu.timing import ACTIVATE, NORM, ROTATE, plain_seconds, products_seconds, rows_seconds
from meshrt.ranks.console import Console
from meshrt.studies.validate import allreducefit, eager, gpufit, validate
from meshrt.studies.validate.errors import errors
from meshrt.studies.validate.gpuallreduce import ALLREDUCE, BY_SOURCES, SYSTEMS, device_of, emulated
from meshrt.studies.validate.gpulayers import DEVICES, seconds
from meshrt.studies.validate.gpulayers import LAYERS as LAYER_ROWS
from meshrt.studies.validate.rows import DATA

LAYERS = "gpu,model,tp,op,m,k,n,microseconds,source"
FIRST = [
    "A6000,any,1,q_proj,7,4096,4096,50,LLMServingSim",
    "A6000,Llama-3.1-8B,1,embedding,3,,,3,LLMServingSim",
    "A40,Llama-2-7b-hf,4,add,300,,,5,vidur",
    "A100,Llama-2-70b-hf,8,attn_rope,65,,,3,vidur",
    "A100,internlm-20b,2,mlp_act,1000,,,45,vidur",
    "H100,Llama-2-7b-hf,1,input_layernorm,129,,,4,vidur",
    "H100,Llama-3.1-8B,2,rope,33,,,33,LLMServingSim",
    "H100,any,8,mlp_up_proj,100,8192,7168,50,vidur",
    "A100,nobody-1b,1,add,4,,,2,vidur",
]
ROUNDS = ["a100_dgx,8,8,2048,30", "a100_dgx,16,8,1048577,460", "h100_pairwise_nvlink,4,4,67108864,2063"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    layers, rounds = tmp_path / "layers.csv", tmp_path / "rounds.csv"
    layers.write_text("\n".join([LAYERS, *FIRST]))
    rounds.write_text("\n".join(["system,gpus,gpus_per_node,bytes,microseconds", *ROUNDS]))
    return [layers, rounds]


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_the_same_on_any_number_of_ranks(comm: Any, files: list[Path]) -> None:
    files = comm.bcast(files)
    compared = validate.validate(comm, Console(), files)
    alone = validate.validate(comm.Split(comm.rank), Console(), files)
    assert [comparison.emulated for comparison in compared] == [comparison.emulated for comparison in alone]
    assert len(compared) == len(FIRST) + len(ROUNDS)
    assert {comparison.row.use for comparison in compared} == {"check"}
    refused = [comparison for comparison in compared if comparison.emulated.value is None]
    assert [comparison.row.sizes["model"] for comparison in refused] == ["nobody-1b"]
    assert "sizes of nobody-1b" in refused[0].emulated.note
    assert (
        comm.allgather(json.dumps([comparison.json() for comparison in compared]))
        == [json.dumps([comparison.json() for comparison in compared])] * comm.size
    )


def sizes(line: str) -> dict[str, Any]:
    (row,) = csv.DictReader([LAYERS, line])
    return {name: int(text) if text.isdigit() else text or None for name, text in row.items()}


def test_a_row_is_what_the_device_took_for_its_kernels() -> None:
    """No launch is waited for; a kernel begins `kernel_seconds` after the one before."""
    h100 = find_gpu("h100")
    product = products_seconds(h100, ((100, 8192, 7168),), 2)
    assert seconds(h100, sizes(FIRST[7])) == pytest.approx(h100.kernel_seconds + product)
    norm = rows_seconds(h100, NORM, 129, 4096, 2 * 2 * 129 * 4096)
    assert seconds(h100, sizes(FIRST[5])) == pytest.approx(h100.kernel_seconds + norm)
    a40 = find_gpu("a40")
    added = plain_seconds(a40, 300 * 4096, 3 * 2 * 300 * 4096)
    assert seconds(a40, sizes(FIRST[2])) == pytest.approx(a40.kernel_seconds + added)
    for op, kernel, width, arrays in (  # phi-2 has no gate, and turns 32 of a head's 80 numbers
        ("mlp_act", ACTIVATE, 10240 // 2, 2), ("attn_rope", ROTATE, 2 * 16 * 32, 2), ("input_layernorm", NORM, 2560, 2)
    ):  # fmt: skip
        alone = rows_seconds(a40, kernel, 200, width, 2 * arrays * 200 * width)
        assert seconds(a40, sizes(f"A40,phi-2,2,{op},200,,,5,vidur")) == pytest.approx(a40.kernel_seconds + alone)


@pytest.mark.mpi(ranks=[1])
def test_a_product_has_two_sides_and_a_ring_two_gpus(comm: Any) -> None:
    with pytest.raises(UsageError, match="k is 64 and n is None: products have both"):
        seconds(find_gpu("a40"), sizes("A40,Llama-2-7b-hf,4,q_proj,300,64,,5,vidur"))
    alone = emulated({"system": "a100_dgx", "gpus": 1, "gpus_per_node": 1, "bytes": 8})
    assert alone.value is None and "there have to be 2 GPUs" in alone.note


@pytest.mark.mpi(ranks=[1])
def test_other_gpus_and_systems_are_by_their_presets_or_refused_row_by_row(tmp_path: Path, comm: Any) -> None:
    (tmp_path / "layers.csv").write_text(
        f"{LAYERS}\nH200,any,1,q,7,4096,4096,50,vidur\nV100,any,1,q,7,4096,4096,50,vidur\n"
    )
    lines = ["h100_dgx,8,8,67108864,450", "a40_pairwise_nvlink,4,4,67108864,5000", "tpu_dgx,8,8,2048,30"]
    (tmp_path / "rounds.csv").write_text("\n".join(["system,gpus,gpus_per_node,bytes,microseconds", *lines]))
    compared = validate.validate(comm, Console(), [tmp_path / "layers.csv", tmp_path / "rounds.csv"])
    h200, v100, dgx, pairs, tpu = [comparison.emulated for comparison in compared]
    assert h200.value is not None and v100.value is None and "V100 is no GPU of a preset" in v100.note
    assert tpu.value is None and "tpu_dgx is not known" in tpu.note
    for figure, name, link in ((dgx, "h100", "nvlink"), (pairs, "a40", "pcie")):
        device = device_of(BY_SOURCES[f"{name}_{'dgx' if link == 'nvlink' else 'pairwise_nvlink'}"], 4, 4)
        assert (
            device.link == link and figure.value is not None and "no run of such a system was measured" in figure.note
        )


@pytest.mark.parametrize(("wrong", "whose"), [("vidur", "Vidur"), ("LLMServingSim", "LLMServingSim")])
def test_an_operator_that_is_not_known(wrong: str, whose: str) -> None:
    with pytest.raises(UsageError, match=rf"op is 'dance'; {whose}'s are .*"):
        seconds(find_gpu("a40"), sizes(f"A40,Llama-2-7b-hf,4,dance,300,,,5,{wrong}"))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("row", "seconds_of_a_ring"),
    [("a100_dgx,8,8,2048", None), ("a100_dgx,8,8,67108864", 14), ("a100_dgx,2,1,67108864", 2),
     ("a100_dgx,8,4,8388608", 14), ("a100_pairwise_nvlink,4,4,67108864", 6), ("h100_pairwise_nvlink,2,2,67108864", 2)],
)  # fmt: skip
def test_an_all_reduce_takes_its_ring_or_the_last_host(row: str, seconds_of_a_ring: int | None, comm: Any) -> None:
    name, *numbers = row.split(",")
    gpus, in_node, nbytes = map(int, numbers)
    microseconds = emulated({"system": name, "gpus": gpus, "gpus_per_node": in_node, "bytes": nbytes}).value
    device = device_of(SYSTEMS[name], gpus, in_node)
    if seconds_of_a_ring is None:
        assert microseconds == pytest.approx(1e6 * SYSTEMS[name].late(gpus))
        return
    chunk = nbytes / gpus
    protocol = device.protocol(seconds_of_a_ring, chunk)
    step = protocol.step_seconds + chunk / (protocol.share * device.link_bytes_per_second)
    want = device.kernel_seconds + protocol.seconds + seconds_of_a_ring * step
    assert microseconds == pytest.approx(1e6 * want, rel=1e-6)
    assert device.link == ("network" if gpus > in_node else "nvlink" if gpus <= device.nvlink_gpus else "pcie")


def test_pytorchs_operators_are_right() -> None:
    """By numbers, against NumPy in float64; the kernels of each are counted."""
    gpu = Gpu(find_gpu("a6000"), 0, dtype=np.dtype(np.float32))
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def kernels(before: int = 0) -> int:
        return gpu.counters.launches - before

    x, weight = random(5, 24), random(24)
    want = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(eager.rms_norm(gpu, x, weight, 1e-5), want, rtol=1e-5)
    assert kernels() == 8
    heads, cos, sin = random(5, 3, 8), random(5, 1, 8), random(5, 1, 8)
    turned = np.concatenate([-heads[..., 4:], heads[..., :4]], -1)
    np.testing.assert_allclose(eager.rotate(gpu, heads, cos, sin), heads * cos + turned * sin, rtol=1e-5, atol=1e-6)
    assert kernels(8) == 5
    gate, up = random(5, 7), random(5, 7)
    np.testing.assert_allclose(eager.swiglu(gpu, gate, up), gate / (1 + np.exp(-gate.astype(float))) * up, rtol=1e-5)
    assert kernels(13) == 2
    ids = np.array([4, 0, 4, 2])
    np.testing.assert_array_equal(eager.embed(gpu, x, ids), x[ids])
    assert kernels(15) == 1


@pytest.mark.mpi(ranks=[1])
def test_the_devices_hold_on_rows_that_they_were_not_found_on(comm: Any) -> None:
    """Median errors, of each GPU's layers and of all-reduces."""
    compared = validate.validate(comm, Console(), [DATA / "gpu_layers.csv", DATA / "gpu_allreduce.csv"], (), ["check"])
    for kernel in (*(f"{gpu} layers" for gpu in DEVICES), "A100 all-reduce", "H100 all-reduce"):
        of = errors([comparison for comparison in compared if comparison.kernel == kernel])
        assert of.refused == 0 and of.median_error is not None and of.median_error < 0.1, kernel


def altered(folder: Path, name: str, use: str, microseconds: str) -> None:
    """Every seventh row of a shipped file, in a folder of one's own; those of that use took other times."""
    with open(DATA / name, newline="") as stream:
        lines = [*csv.DictReader(stream)][::7]
    with open(folder / name, "w", newline="") as stream:
        writer = csv.DictWriter(stream, [*lines[0]])
        writer.writeheader()
        writer.writerows(line | {"microseconds": microseconds} if line["use"] == use else line for line in lines)


def test_constants_come_from_rows_for_fitting_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scripts that find them are given files whose other rows say anything, and find the same: those of kernels, of
    each of four GPUs, of PyTorch's kernels, and of links and hosts. With other rows for fitting nothing is the same.
    """
    left: list[float] = []

    def search(start: gpufit.Found, loss: Callable[[gpufit.Found], float], steps: int) -> gpufit.Found:
        best = searching(start, loss, 2)
        left.append(loss(best))
        return best

    searching = gpufit.search
    for study in (gpufit, allreducefit):
        monkeypatch.setattr(study, "DATA", tmp_path)
        monkeypatch.setattr(study, "search", search)

    def constants(use: str) -> tuple[str, list[float]]:
        for kind in (LAYER_ROWS, ALLREDUCE):
            altered(tmp_path, kind.file, use, "1000000")
        left.clear()
        gpufit.main(turns=1)
        allreducefit.main()
        return capsys.readouterr().out, [*left]

    shipped, others, own = map(constants, ("none", "check", "fit"))
    assert others == shipped and len(shipped[1]) == 1 + len(DEVICES) + 1 + 1
    assert all(loss != before for loss, before in zip(own[1], shipped[1], strict=True))
