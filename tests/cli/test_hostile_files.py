"""Files and options that would end the process with a traceback, or fill its memory, are refused with a reason."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from koord_numa.cli import main
from koord_numa.cli.cluster.objects import DEEPEST, documents
from tests.tables import each_row

LIST = "{kind: List, apiVersion: v1, items: [%s]}"
DEEP = {
    "json": "[" * 100_000 + "]" * 100_000,
    "json objects": '{"a":' * 2000 + "1" + "}" * 2000,
    "unfinished": "[" * 100_000,
    "flow": "{a: [" * 50_000,
    "block": "\n".join(" " * level + "a:" for level in range(2000)),
    "lists": "- " * 2000 + "a",
    "brackets in texts": '["]",' * 2000,
}
BRACKETS = "[\n" * 10_000
"""As deep for each reader. Of those on one line PyYAML looks at a thousand ahead, for each of them at all that came before."""

ALIASES = {
    "lists": "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "objects": f"a: &a {LIST % ', '.join(['{}'] * 10)}\n"
    + "".join(
        f"{new}: &{new} {LIST % ', '.join([f'*{old}'] * 10)}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
}


@each_row("text", DEEP.values(), ids=DEEP.keys())
def test_deep_files_are_refused(text: str) -> None:
    with pytest.raises(click.ClickException, match=f"^deep.yaml is nested more than {DEEPEST} levels deep$"):
        list(documents(text, "deep.yaml"))


@pytest.mark.parametrize("text", ALIASES.values(), ids=ALIASES.keys())
def test_aliases_of_aliases_are_refused(text: str) -> None:
    with pytest.raises(click.ClickException, match=r"^many.yaml has aliases that stand for more than 1000000 values$"):
        list(documents(text, "many.yaml"))


@pytest.mark.parametrize("text", ["kind: List\nitems: &a [*a]\n", "&a {kind: List, items: [*a]}"])
def test_values_that_contain_themselves_are_refused(text: str) -> None:
    with pytest.raises(click.ClickException, match=r"^self.yaml has a value that contains itself: \*a$"):
        list(documents(text, "self.yaml"))


def test_anchors_and_lists_are_read() -> None:
    text = f"a: &a {{x: [1, 2]}}\nb: *a\n---\n{LIST % '{b: 1}, {kind: PodList, items: [{c: 2}]}'}\n---\n"
    assert list(documents(text, "some.yaml")) == [{"a": {"x": [1, 2]}, "b": {"x": [1, 2]}}, {"b": 1}, {"c": 2}]


def test_json_has_integers_of_any_size_and_several_documents() -> None:
    assert list(documents(json.dumps({"a": 1 << 70}), "a.json")) == [{"a": 1 << 70}]
    assert list(documents('{"a": 1e3}', "a.json")) == [{"a": 1000.0}]
    assert list(documents('{"a": 1}\n---\n{"b": 2}', "a.json")) == [{"a": 1}, {"b": 2}]


def test_every_command_that_reads_files_says_so(tmp_path: Path) -> None:
    deep, node = tmp_path / "deep.yaml", tmp_path / "node.yaml"
    deep.write_text(BRACKETS)
    node.write_text("{apiVersion: v1, kind: Node, metadata: {name: n}}")
    for arguments in (
        ["simulate", "-f", str(deep), "--from", str(node)],
        ["simulate", "-f", str(node), "--from", str(deep)],
        ["nodes", "--from", str(deep)],
        ["explain", "--from", str(deep)],
        ["sandbox", "--machines", str(deep)],
        ["nodes", "--kubeconfig", str(deep)],
        ["run", "--config", str(deep)],
        ["nodes", "--from", str(node), "--config", str(deep)],
    ):
        answer = CliRunner().invoke(main, arguments)
        assert answer.exit_code == 1, (arguments, answer.output, answer.exception)
        assert "deep.yaml" in answer.output
        assert isinstance(answer.exception, SystemExit)


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "%s"%s}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""
KUBECONFIGS = {
    "deep": BRACKETS,
    "certificate": KUBECONFIG % ("https://127.0.0.1:1", ", certificate-authority-data: bm9uZQ=="),
    "address": KUBECONFIG % ("not a url", ""),
    "another file": "{kind: Pod}",
}


@pytest.mark.parametrize("text", KUBECONFIGS.values(), ids=KUBECONFIGS.keys())
def test_kubeconfigs_of_any_shape_get_a_sentence(text: str, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(text)
    for arguments in (["nodes"], ["node-agent", "--node-name", "n"]):
        answer = CliRunner().invoke(main, [*arguments, "--kubeconfig", str(kubeconfig)])
        assert isinstance(answer.exception, SystemExit), answer.exception
        assert (answer.exit_code, answer.output.startswith("Error: ")) == (1, True), answer.output


def test_another_file_is_no_configuration_of_a_kubelet(tmp_path: Path) -> None:
    """Every field has a default: the agent would publish a kubelet without any option."""
    file = tmp_path / "pod.yaml"
    file.write_text("{apiVersion: v1, kind: Pod, metadata: {name: p}}")
    answer = CliRunner().invoke(main, ["node-agent", "--print", "--kubelet-config", str(file)])
    assert (answer.exit_code, answer.output) == (1, f"Error: {file}: a Pod is not a KubeletConfiguration\n")


@pytest.mark.parametrize(
    "arguments", [["demo", "--speed", "nan"], ["top", "--interval", "nan"], ["top", "--interval", "inf"]]
)
def test_numbers_that_are_none_are_refused(arguments: list[str]) -> None:
    """They compare with no bound, and the command would wait for ever."""
    answer = CliRunner().invoke(main, arguments)
    assert (answer.exit_code, "is not a number" in answer.output) == (2, True), answer.output
