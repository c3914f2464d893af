from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from holdfast.base.errors import ConfigError
from holdfast.base.section import kind_of
from holdfast.methods.penalties import PENALTIES
from holdfast.recipe import BUNDLED, absolute, dump, load, load_run, require, setting_values
from holdfast.recipe.loading import on_one_line
from holdfast.recipe.paths import PATHS


def recipe(folder: Path, text: str) -> Path:
    path = folder / "my.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(overrides=overrides)
    return str(caught.value)


# ---- files


@pytest.mark.parametrize("text", ["📚/docs", 'it\'s "C:\\docs"', "two\nlines\t\x7f\x01", ""])
def test_a_value_on_one_line_reads_back_equal(text: str) -> None:
    value = {"text": text, text: [True, 0.2, {}], "inside": {"list": [[], [text]]}}
    line = on_one_line(value)
    assert "\n" not in line and tomllib.loads(f"v = {line}") == {"v": value}


def test_overrides_beat_the_file_and_the_last_one_counts(tmp_path: Path) -> None:
    path = recipe(tmp_path, "[train]\nsteps = 7\n")
    assert load(path, ["--train.steps", "8", "--train.steps=9"]).train.steps == 9


def test_dump_reads_back_equal(tmp_path: Path) -> None:
    config = load(
        overrides=[
            "--data.train=q.jsonl",
            "--retrieval.corpus=c.jsonl",
            "--reward.custom={ 'my_code:brevity' = 0.2 }",
            "--run.dir=ü \"'",
        ]
    )
    (tmp_path / "config.toml").write_text(dump(absolute(config)), encoding="utf-8")
    assert load(tmp_path / "config.toml") == absolute(config)
    assert config != load()


def test_a_preset_brings_its_turns(tmp_path: Path) -> None:
    search = load(overrides=["--protocol.preset", "search-r1"])
    assert search.protocol.max_turns == 5 and load().protocol.max_turns == 4
    assert load(overrides=["--protocol.preset", "r1"]).protocol.max_turns == 1
    assert load(overrides=["--protocol.preset", "search-r1", "--protocol.max_turns", "4"]).protocol.max_turns == 4
    resolved = recipe(tmp_path, dump(search))
    assert load(resolved, ["--protocol.preset", "clean"]).protocol.max_turns == 4
    assert load(recipe(tmp_path, '[protocol]\npreset = "search-r1"\nmax_turns = 3\n')).protocol.max_turns == 3


# ---- a recipe that extends another


def files(folder: Path, **texts: str) -> Path:
    """Writes `NAME.toml` files; the path of the last one."""
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / f"{list(texts)[-1]}.toml"


def test_an_extending_recipe_changes_what_it_names(tmp_path: Path) -> None:
    path = files(
        tmp_path,
        base="[train]\nsteps = 7\nlr = 2e-6\n[reward]\ncustom = { 'a:b' = 1.0 }\n",
        middle="extends = 'base.toml'\n[train]\nsteps = 8\n[reward]\ncustom = { 'c:d' = 0.5 }\n",
        last="extends = 'middle.toml'\n[run]\nseed = 3\n",
    )
    config = load(path, ["--train.lr", "3e-6"])
    assert (config.train.steps, config.train.lr, config.run.seed) == (8, 3e-6, 3)
    assert config.reward.custom == {"c:d": 0.5}, "a setting that holds a table is replaced, not joined"
    assert load(recipe(tmp_path, dump(config))) == config, "the resolved recipe stands alone"


def test_a_pipe_and_a_device_are_no_recipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", recipe(tmp_path, "extends = '/dev/zero'\n")):
        with pytest.raises(ConfigError, match="not a regular file"):
            load(path)


def test_an_extending_recipe_may_name_a_bundled_one_and_another_penalty(tmp_path: Path) -> None:
    path = files(tmp_path, mine='extends = "llds-v1"\n[loss.penalty]\nname = "sapo"\n')
    assert load(path).loss.penalty == PENALTIES["sapo"](), "the base's gate and coefficient are not SAPO's"
    assert load(path).train.questions == load(BUNDLED / "llds-v1.toml").train.questions
    mine = load(files(tmp_path, mine='extends = "quickstart"\n[protocol]\npreset = "sapo"\n'))
    assert mine.protocol.preset == "sapo"


def test_own_questions_drop_those_of_the_recipe_that_is_extended(tmp_path: Path) -> None:
    own = "extends = 'factbook'\n[data]\ntrain = 'q.jsonl'\n[retrieval]\ncorpus = 'docs'\n"
    config = load(files(tmp_path, mine=own))
    assert (config.data.dev, config.data.test, config.warm_start.data) == (None, None, None)
    assert config.protocol == load(BUNDLED / "factbook.toml").protocol
    kept = load(files(tmp_path, mine=own + "[warm_start]\ndata = 'mine.jsonl'\n"), ["--data.dev=d.jsonl"])
    assert (kept.data.dev, kept.warm_start.data) == ("d.jsonl", str(tmp_path / "mine.jsonl"))
    assert load(tmp_path / "mine.toml", ["--data.train=other.jsonl", "--data.dev=d.jsonl"]).data.dev == "d.jsonl"


def test_faults_stay_when_one_file_of_questions_replaces_another(tmp_path: Path) -> None:
    faults = "[faults]\nsampler_8_bits = true\n"
    own = "[data]\ntrain = 'a.jsonl'\n[retrieval]\ncorpus = 'c.jsonl'\n"
    others = ["--data.train=b.jsonl", "--retrieval.corpus=d.jsonl"]
    assert load(recipe(tmp_path, own + faults), others).faults.sampler_8_bits
    assert not load(recipe(tmp_path, faults), others).faults.sampler_8_bits, "these were for the bundled world"


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"a": "extends = 3\n"}, "a.toml: extends = 3 is not the name of a recipe"),
        ({"a": '[data]\ntrain = "x\\u0000"\n'}, "x\\x00': must be a UTF-8 string without NUL"),
        ({"a": "extends = 'gone'\n"}, "a.toml: extends = 'gone': there is no recipe "),
        ({"a": "extends = 'b.toml'\n", "b": "extends = 'a.toml'\n"}, "leads back to this file"),
        ({"base": "[train]\nstep = 7\n", "a": "extends = 'base.toml'\n"}, "train.step"),
        ({"base": "train = 7\n", "a": "extends = 'base.toml'\n[train]\nsteps = 3\n"}, "train is a section"),
        ({"a": "[train]\nextends = 'quickstart'\n"}, "train.extends"),
    ],
)
def test_a_recipe_that_cannot_extend_is_a_sentence(texts: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(files(tmp_path, **texts))
    assert sentence in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no recipe .*nowhere\.toml; give the path"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="is a folder; give a TOML file"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"my\.toml is not valid TOML: .*line 2"):
        load(recipe(tmp_path, "[train]\nsteps = = 3\n"))
    latin = tmp_path / "latin.toml"
    latin.write_bytes("[run]\nname = 'é'\n".encode("latin-1"))
    for deep in (".".join(1000 * "a") + " = 1", "a = " + "[" * 5000):
        with pytest.raises(ConfigError, match="is not valid TOML: it is nested too deeply"):
            load(recipe(tmp_path, deep))
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(latin)


# ---- what is refused, and how


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train.stesp", "train.steps"),
        ("lr", "train.lr or critic.lr or warm_start.lr"),
        ("penalty.coef", "loss.penalty.coef"),
        ("loss.group_size", "train.group_size"),
        ("trian", "train"),
        ("learning_rate", "train.lr"),
        ("training.num_generations", "train.group_size"),
    ],
)
def test_an_unknown_name_gets_its_nearest_match(name: str, meant: str) -> None:
    assert refusal(f"--{name}", "3") == f"--{name}: there is no such setting; did you mean {meant}?"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("--train.steps=0", "--train.steps = 0: must be 1 or more"),
        ("--train.steps=2.5", "--train.steps = '2.5': must be a whole number"),
        ("--train.lr=0", "--train.lr = 0.0: must be more than 0"),
        ("--train.lr=nan", "--train.lr = nan: must be a finite number"),
        ("--sampling.top_p=1.5", "--sampling.top_p = 1.5: must be 1 or less"),
        ("--track.tensorboard=maybe", "--track.tensorboard = 'maybe': must be true or false"),
        ("--model.autocast=b16", "--model.autocast = 'b16': must be 'auto', 'bf16' or 'none' (did you mean 'bf16'?)"),
        (
            "--loss.penalty.answer_weight=heavy",
            "--loss.penalty.answer_weight = 'heavy': must be a number, or 'adaptive-paper' or 'adaptive-code'",
        ),
    ],
)
def test_a_bad_value_is_one_sentence(override: str, sentence: str) -> None:
    assert refusal(override) == sentence


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        # `steps = true` would be 1 to a reader that is not strict.
        (["--train.steps", "--track.tensorboard"], "--train.steps needs a value; write --train.steps 60"),
        (["my.toml"], "cannot read the argument 'my.toml'; settings are written --section.key value"),
        (["--loss.penalty", "3"], "--loss.penalty: this is a section of 12 settings; name one of them, such as loss.p"),
    ],
)
def test_what_is_no_setting(arguments: list[str], said: str) -> None:
    assert refusal(*arguments).startswith(said)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[train]\nsteps = '50'", "train.steps = '50': must be a whole number"),
        ("[train]\nsteps = true", "train.steps = true: must be a whole number"),
        ("[track]\ntensorboard = 1", "track.tensorboard = 1: must be true or false"),
        ("[run]\nname = 5", "run.name = 5: must be a string, in quotes"),
        ("train = 5", "train = 5: is a section; write its settings below a [section] line"),
        ("[protocol]\ntools = 'search'", "protocol.tools = 'search': must be a list, in brackets"),
        ("[world]\nfiller_length = [4]", "world.filler_length: must be a list of two numbers, [A, B]"),
        (
            "[loss.penalty]\nname = ['llds']",
            "loss.penalty.name = ['llds']: must be 'none', 'llds', 'sapo', 'nll' or 'custom'",
        ),
        ("[trian]\nsteps = 5", "trian: there is no such setting; did you mean train?"),
        ("[optimizer]\nlr = 1e-4", "optimizer.lr: there is no such setting; did you mean train.lr?"),
    ],
)
def test_a_file_is_read_strictly_and_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = recipe(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {sentence}"


def test_all_problems_come_at_once_and_say_where_they_are(tmp_path: Path) -> None:
    path = recipe(tmp_path, "[train]\nsteps = 0\nfoo_bar = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(path, ["--train.lr", "fast"])
    head, *problems = str(caught.value).split("\n")
    assert head == f"{path}: these settings cannot work"
    assert sorted(p.strip() for p in problems) == [
        "--train.lr = 'fast': must be a number",  # from the command line, and so named
        "train.foo_bar: there is no such setting; `holdfast recipe show` prints all",
        "train.steps = 0: must be 1 or more",
    ]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"url": "http://h:1"}, (None, None, "http://h:1")),
        ({"corpus": "d.jsonl"}, ("d.jsonl", None, None)),
        ({"index": "j"}, (None, "j", None)),
        ({"corpus": "d.jsonl", "index": "j"}, ("d.jsonl", "j", None)),
    ],
)
@pytest.mark.parametrize("below", ['corpus = "c"\nindex = "i"\n', 'url = "http://g:1"\n'])
def test_given_passages_replace_all_those_of_the_recipe(
    below: str, given: dict[str, str], left: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = Path("base.toml")
    base.write_text(f'[data]\ntrain = "q.jsonl"\n[retrieval]\n{below}')
    Path("mine.toml").write_text('extends = "base.toml"\n' + tomli_w.dumps({"retrieval": given}))
    for config in (load("mine.toml"), load(base, [f"--retrieval.{key}={value}" for key, value in given.items()])):
        assert (config.retrieval.corpus, config.retrieval.index, config.retrieval.url) == left


def test_what_is_unset_is_as_if_the_recipe_did_not_set_it(tmp_path: Path) -> None:
    base = '[retrieval]\ncorpus = "c"\nindex = "i"\n[data]\ntrain = "q"\n[loss.penalty]\nname = "sapo"\ntau = 2.0\n'
    names = ["retrieval.corpus", "loss.penalty.name", "warm_start.data"]
    path = files(tmp_path, base=base, mine=f"extends = 'base.toml'\nunset = {names}\n[retrieval]\nindex = 'j'\n")
    in_file = load(path)
    assert (in_file.retrieval.corpus, in_file.retrieval.index) == (None, str(tmp_path / "j"))
    assert in_file.loss.penalty == load().loss.penalty, "tau was for the penalty that is unset"
    words = [word for name in names for word in ("--unset", name.replace("_", "-"))]
    assert load(tmp_path / "base.toml", [*words, f"--retrieval.index={tmp_path / 'j'}"]) == in_file
    assert load(path, ["--unset=retrieval.index", "--retrieval.url", "http://h:1"]).retrieval.index is None
    assert load(path, ["--unset", "train.steps", "--train.steps", "3"]).train.steps == 3, "the last counts"
    optional = load(files(tmp_path, none="[data]\ndev = 'none'\n[model]\nchat_template = 'none'\n"))
    assert (optional.data.dev, optional.model.chat_template) == (None, "none")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("unset = 'retrieval.corpus'\n", "is not a list of settings"),
        ("unset = [3]\n", "is not a list of settings"),
        ("unset = ['retrieval.corpse']\n", "did you mean retrieval.corpus?"),
        ("unset = ['loss.penalty']\n", "this is a section"),
    ],
)
def test_what_cannot_be_unset(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(files(tmp_path, mine=text))
    assert said in str(caught.value) and "mine.toml" in str(caught.value)
    for words in (["--unset"], ["--unset", "--train.steps"], ["--unset", "train"]):
        with pytest.raises(ConfigError, match="--unset"):
            load(overrides=words)


# ---- paths


EVERY_PATH = """
    [data]
    train = "q.jsonl"
    dev = "/d.jsonl"
    test = "../t.jsonl"
    [retrieval]
    corpus = "docs"
    index = "i"
    [model]
    path = "own/model"
    chat_template = "t.jinja"
    [warm_start]
    data = "w.jsonl"
    [critic]
    path = "critic"
    [loss]
    advantage = "gae"
    kl_coef = 0
    penalty.name = "none"
    [reward.custom]
    "my_code:brevity" = 0.2
"""


def test_paths_of_a_recipe_lead_from_its_folder_and_those_of_a_run_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "in" / "own" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    below = recipe(tmp_path / "in", EVERY_PATH).relative_to(tmp_path)
    config = load(below, ["--data.test=here.jsonl"])
    values = setting_values(config)
    assert {name: values[name] for name in PATHS} == {
        "run.code": "in",
        "data.train": "in/q.jsonl",
        "data.dev": "/d.jsonl",
        "data.test": "here.jsonl",
        "retrieval.corpus": "in/docs",
        "retrieval.index": "in/i",
        "model.path": "in/own/model",
        "model.chat_template": "in/t.jinja",
        "warm_start.data": "in/w.jsonl",
        "critic.path": "in/critic",
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(dump(absolute(config)))
    monkeypatch.chdir("/")
    kept = load_run(tmp_path / "run")
    assert {setting_values(kept)[name] for name in PATHS} == {str(tmp_path / values[name]) for name in PATHS}
    assert str(tmp_path / "in") in sys.path, "where my_code is"


def test_names_are_no_paths_and_old_runs_are_read_as_they_were(tmp_path: Path) -> None:
    names = load(recipe(tmp_path, '[model]\npath = "Qwen/Qwen2.5-3B"\nchat_template = "auto"\n'))
    assert absolute(names) == names and names.model.path == "Qwen/Qwen2.5-3B"
    for bundled in BUNDLED.glob("*.toml"):
        factbook = load(recipe(tmp_path, f'extends = "{bundled.stem}"\n'))
        assert factbook == load(bundled)
    (tmp_path / "config.toml").write_text('[data]\ntrain = "q.jsonl"\n[retrieval]\ncorpus = "docs"\n')
    assert load_run(tmp_path).data.train == "q.jsonl", "of a run of an older version"


def test_missing_files_are_named_with_their_settings_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "i i").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load(
        overrides=[f"--data.train={tmp_path}/there", "--data.dev=gone", "--retrieval.corpus=c", "--retrieval.index=i i"]
    )
    require(config, "data.train", "data.test")
    with pytest.raises(ConfigError) as caught:
        require(config, *PATHS)
    require(load(), *PATHS)
    assert "data.train" not in str(caught.value) and "data.dev = 'gone'" in str(caught.value)
    with pytest.raises(ConfigError, match=r"--retrieval.corpus PATH --retrieval.index 'i i'"):
        require(config, "retrieval.corpus")  # a corpus alone would leave the index behind


def test_settings_of_one_name_are_of_one_kind() -> None:
    """So that a command line is read in the same way whichever section it turns out to be for."""
    kinds: dict[str, set[str]] = {}
    for penalty in PENALTIES.values():
        for key, info in penalty.model_fields.items():
            kinds.setdefault(key, set()).add(kind_of(info.annotation).removesuffix(" or none"))
    assert {key: kind for key, kind in kinds.items() if len(kind) > 1 and key != "name"} == {}


def test_a_recipe_may_name_code(tmp_path: Path) -> None:
    text = """
        [loss.penalty]
        name = "custom"
        path = "my_code:Hinge"
        settings = { margin = 0.5, "odd key" = ["a", { b = true }] }
        [reward.custom]
        "my_code:brevity" = 0.2
    """
    config = load(recipe(tmp_path, text))
    assert {name: weight for name, weight in config.reward.weights().items() if weight} == {
        "em": 1.0,
        "my_code:brevity": 0.2,
    }
    assert load(recipe(tmp_path, dump(config))) == config
    words = ["--reward.custom", '"my_code:brevity" = 0.2']
    assert load(overrides=words).reward == config.reward


@pytest.mark.parametrize("path", ["", "my_code.Hinge", "../my_code:Hinge"])
def test_a_path_that_names_no_code(path: str) -> None:
    assert "as module:Class" in refusal("--loss.penalty.name=custom", f"--loss.penalty.path={path}")
    assert "write module:function" in refusal("--reward.custom", f'"{path}" = 1.0')


def test_what_the_command_line_causes_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[loss]\nsurrogate = 'cispo'\n")
    with pytest.raises(ConfigError) as typed:
        load(path, ["--loss.dual_clip", "3"])
    assert str(typed.value).startswith("--loss.dual_clip = 3.0 with loss.surrogate = 'cispo': ")
    path.write_text("[loss]\nsurrogate = 'cispo'\ndual_clip = 3.0\n")
    with pytest.raises(ConfigError) as written:
        load(path, ["--train.steps", "5"])
    assert str(written.value).startswith(f"{path}: loss.dual_clip = 3.0 with loss.surrogate = 'cispo': ")
