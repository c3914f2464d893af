"""The agent behind an OpenAI-compatible endpoint: what clients get, what they may send, and who waits for whom."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.evaluate.endpoint.line import Desk, Visit
from holdfast.evaluate.endpoint.messages import Asked

from ..browser import Browser, find_browser
from ..model.conftest import tokenizer
from ..waiting import wait_for
from .endpoint import ANSWERS, PASSAGES, SEARCHES, Policy, desk, served

__all__ = ["tokenizer"]

QUESTION = {"messages": [{"role": "user", "content": "Who is the mentor of Mira?"}]}
CHAT = "/v1/chat/completions"


@pytest.fixture
def policy(tokenizer: Any) -> Callable[..., Policy]:
    return lambda *turns, **settings: Policy(tokenizer, *turns, **settings)


def post(desk: Desk, **fields: Any) -> httpx.Response:
    with served(desk) as url:
        return httpx.post(url + CHAT, json=QUESTION | fields, timeout=60)


def events_of(text: str) -> list[Any]:
    """The data of a stream but for its last event, which must be the end."""
    data = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(event) for event in data[:-1]]


def test_an_answer_comes_with_its_searches_and_passages(policy: Any, tokenizer: Any) -> None:
    answer = post(desk(policy(SEARCHES, ANSWERS), notes=lambda question: ["a note"])).json()
    assert (answer["object"], answer["model"]) == ("chat.completion", "night")
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["role"], message["content"], choice["finish_reason"]) == ("assistant", "Kelan Orso", "stop")
    assert "tool_calls" not in message
    assert (
        message["reasoning"]
        == message["reasoning_content"]
        == ("Note: a note\nlook\nSearch: mentor of Mira\nFound: Mira; Zed\nthere\n")
    )
    (citation,) = message["annotations"]  # the other passage does not have the answer
    assert citation["type"] == "url_citation"
    assert citation["url_citation"] == {"start_index": 0, "end_index": 10, "title": "Mira", "url": "passage:p0"}
    assert [(result["title"], result["snippet"]) for result in answer["search_results"]] == [
        ("Mira", "That is Kelan Orso."),
        ("Zed", "Zed has rival Bo."),
    ]
    usage = answer["usage"]
    wrote = sum(len(tokenizer(turn)["input_ids"]) for turn in (SEARCHES, ANSWERS))
    assert usage["completion_tokens"] == wrote
    assert usage["total_tokens"] == usage["prompt_tokens"] + wrote
    assert usage["prompt_tokens"] > len(tokenizer("".join(PASSAGES))["input_ids"])  # the observation is read, too


def test_a_stream_has_each_turn_and_says_the_same(policy: Any) -> None:
    whole = post(desk(policy(SEARCHES, ANSWERS))).json()
    events = events_of(post(desk(policy(SEARCHES, ANSWERS)), stream=True).text)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == "Kelan Orso"
    message = whole["choices"][0]["message"]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == message[name]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert deltas[-1]["annotations"] == message["annotations"]
    assert events[-1]["search_results"] == whole["search_results"]
    searched = next(event["step"] for event in events if "step" in event)
    assert [passage["title"] for passage in searched["found"]] == ["Mira", "Zed"]
    assert len({event["id"] for event in events}) == 1

    counted = events_of(post(desk(policy(SEARCHES, ANSWERS)), stream=True, stream_options={"include_usage": True}).text)
    assert counted[-1]["choices"] == [] and counted[-1]["usage"] == whole["usage"]
    assert not any("usage" in event for event in [*events, *counted[:-1]])


def test_the_last_message_of_the_user_is_the_question(policy: Any, tokenizer: Any) -> None:
    said = policy(ANSWERS)
    parts = [{"type": "text", "text": "Who is the rival"}, {"type": "text", "text": "of Zed?"}]
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who is Mira?"},
        {"role": "assistant", "content": "A smith."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
    ]
    assert post(desk(said), messages=conversation).status_code == 200
    (request,) = said.seen["ask"]
    prompt = tokenizer.decode(list(request.token_ids))
    assert "Who is the rival\nof Zed?" in prompt
    assert "Mira" not in prompt and "brief" not in prompt and "smith" not in prompt


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"messages": []}, 400, "messages: "),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, 400, "there is no question"),
        ({"messages": [{"role": "user", "content": "  "}]}, 400, "there is no question"),
        ({"messages": [{"role": "user", "content": "x" * 10_001}]}, 400, "10001 characters"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "a part of type image_url"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "has tools of its own"),
        ({"n": 2}, 400, "n = 2"),
        ({"max_tokens": 0}, 400, "max_tokens: "),
        ({"temperature": -1}, 400, "temperature: "),
        ({"model": "gpt-9"}, 404, "there is no model gpt-9; this server has night"),
        ({"user": "x" * 2**21}, 413, "the body is longer than"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(policy: Any, fields: Any, status: int, sentence: str) -> None:
    said = policy(ANSWERS)
    answer = post(desk(said), **fields)
    error = answer.json()["error"]
    assert answer.status_code == status and sentence in error["message"]
    assert error["type"] == "invalid_request_error" and "code" in error
    assert said.seen == {}, "nothing is sampled for it"


def test_fields_that_mean_nothing_here_are_ignored(policy: Any) -> None:
    more = {"model": "night", "tools": [], "n": 1, "top_k": 5, "logit_bias": {}, "user": "u", "stream": None}
    assert post(desk(policy(ANSWERS)), **more).json()["choices"][0]["message"]["content"] == "Kelan Orso"


def test_a_prompt_that_fills_the_rollout_is_the_clients_to_change(policy: Any) -> None:
    answer = post(desk(policy(ANSWERS), protocol={"max_total_tokens": 20}))
    assert answer.status_code == 400 and "protocol.max_total_tokens = 20" in answer.json()["error"]["message"]


# ---- what ends without an answer


def test_a_failed_search_is_no_answer(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.base.retries.Retries.pause", lambda *_, **__: None)
    answer = post(desk(policy(SEARCHES, ANSWERS), broken=True))
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert error["type"] == "server_error" and "no answer for mentor of Mira" in error["message"]

    events = events_of(post(desk(policy(SEARCHES, ANSWERS), broken=True), stream=True).text)
    assert events[-1] == {"error": error}
    assert not any(event["choices"][0]["delta"].get("content") for event in events[:-1])


def test_a_rollout_without_an_answer_says_why(policy: Any) -> None:
    answer = post(desk(policy(SEARCHES, SEARCHES), protocol={"max_turns": 2})).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["annotations"] == []
    assert choice["message"]["content"] == "There is no answer: all 2 turns were used up (protocol.max_turns)."


@pytest.mark.parametrize("most", [1, 9, 12, 40])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_model_writes_no_more_tokens_than_the_request_allows(policy: Any, most: int, name: str) -> None:
    said = policy("words without any tag", *["more of these words " * 3] * 3)
    answer = post(desk(said, protocol={"max_turns": 4}), **{name: most}).json()
    assert answer["usage"]["completion_tokens"] <= most
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert f"max_tokens = {most}" in choice["message"]["content"] or answer["usage"]["completion_tokens"] < most


def test_a_fault_of_ours_is_said_without_its_inside(policy: Any) -> None:
    events = events_of(post(desk(policy()), stream=True).text)  # the script is empty: an IndexError
    assert events[-1]["error"]["type"] == "server_error"
    assert "IndexError" in events[-1]["error"]["message"] and "pop" not in events[-1]["error"]["message"]


def test_sampling_of_a_request(policy: Any) -> None:
    said = policy(ANSWERS, ANSWERS, ANSWERS)
    with served(desk(said)) as url:
        for fields in ({}, {"temperature": 0, "seed": -7}, {"temperature": 0.5}):
            assert httpx.post(url + CHAT, json=QUESTION | fields, timeout=60).status_code == 200
    assert said.samplings == [{"temperature": 1.0, "greedy": True}, {"temperature": 0.5, "greedy": False}]
    assert all(0 <= request.seed < 2**63 for request in said.seen["ask"])
    assert said.seen["ask"][1].seed == 2**63 - 7


# ---- one at a time


class Gate:
    """Holds a policy until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> None:
        self.reached.release()
        assert self.open.acquire(timeout=60)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    for _ in range(100):
        made.open.release()


def later(url: str, answers: list[httpx.Response]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(httpx.post(url + CHAT, json=QUESTION, timeout=60)))
    thread.start()
    return thread


def test_more_requests_than_may_wait_are_refused(policy: Any, gate: Gate) -> None:
    own, answers = desk(policy(*[ANSWERS] * 3, before=gate), waiting=1), list[httpx.Response]()
    with served(own) as url:
        first = later(url, answers)
        assert gate.reached.acquire(timeout=60)
        second = later(url, answers)
        wait_for(lambda: len(own.open) == 2, minutes=1)
        refused = httpx.post(url + CHAT, json=QUESTION, timeout=60)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["type"] == "rate_limit_error"
        gate.open.release()
        gate.open.release()
        for thread in (first, second):
            thread.join(60)
        gate.open.release()
        assert httpx.post(url + CHAT, json=QUESTION, timeout=60).status_code == 200, "and later there is room again"
    assert [answer.status_code for answer in answers] == [200, 200]


def test_a_stream_says_that_it_lives(policy: Any, gate: Gate) -> None:
    with (
        served(desk(policy(ANSWERS, before=gate), quiet=0.05)) as url,
        httpx.stream("POST", url + CHAT, json=QUESTION | {"stream": True}, timeout=60) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(": "))
        gate.open.release()
        assert "data: [DONE]" in list(lines)


def call(url: str, **fields: Any) -> socket.socket:
    """A connection on which the question is asked."""
    body = json.dumps(QUESTION | fields).encode()
    place = httpx.URL(url)
    connection = socket.create_connection((place.host, place.port or 0), timeout=60)
    connection.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    )
    connection.sendall(body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_waits_for_those_that_have_left(policy: Any, gate: Gate, stream: bool) -> None:
    """A rollout whose client has left ends with its turn, and one that has not begun never begins."""
    said, visits = policy(SEARCHES, ANSWERS, before=gate), list[Visit]()

    class Watched(Desk):
        def take(self, asked: Asked) -> Visit:
            visits.append(super().take(asked))
            return visits[-1]

    plain = desk(said, quiet=0.05)
    own = Watched(agent=plain.agent, name=plain.name, quiet=plain.quiet)
    with served(own) as url:
        running = call(url, stream=stream)
        assert gate.reached.acquire(timeout=60)
        waiting = call(url, stream=stream)
        wait_for(lambda: len(own.open) == 2, minutes=1)
        for connection in (running, waiting):
            connection.close()
        wait_for(lambda: len(visits) == 2 and all(visit.gone.is_set() for visit in visits), minutes=1)
        gate.open.release()  # the turn that was being sampled: a search, after which the rollout would go on
        wait_for(lambda: not own.open, minutes=1)
        gate.open.release()
        assert httpx.post(url + CHAT, json=QUESTION, timeout=60).json()["choices"][0]["finish_reason"] == "stop"
    assert len(said.seen["ask"]) == 2, "a turn of the first rollout, and that of the last"


# ---- who may call


def test_a_token_keeps_all_but_the_page(policy: Any) -> None:
    with served(desk(policy(ANSWERS)), token="secret") as url:
        refused = httpx.get(url + "/v1/models")
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
        assert httpx.post(url + CHAT, json=QUESTION).status_code == 401
        own = {"Authorization": "Bearer secret"}
        assert httpx.get(url + "/v1/models", headers=own).json()["data"][0]["id"] == "night"
        foreign = own | {"Origin": "https://elsewhere.example"}
        assert httpx.post(url + CHAT, json=QUESTION, headers=foreign, timeout=60).status_code == 200
        assert httpx.get(url + "/").status_code == httpx.get(url + "/health").status_code == 200


def test_without_a_token_pages_of_others_get_nothing(policy: Any) -> None:
    said = policy(ANSWERS)
    with served(desk(said), local="127.0.0.1") as url:
        for headers, status in (({"Origin": "https://elsewhere.example"}, 403), ({"Host": "elsewhere.example"}, 421)):
            answer = httpx.post(url + CHAT, json=QUESTION, headers=headers)
            assert answer.status_code == status and answer.json()["error"]["message"]
        assert said.seen == {}
        assert httpx.post(url + CHAT, json=QUESTION, headers={"Origin": url}, timeout=60).status_code == 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/completions"), ("GET", CHAT), ("POST", "/v1/models")])
def test_an_address_that_is_not_there_names_those_that_are(policy: Any, method: str, path: str) -> None:
    with served(desk(policy())) as url:
        answer = httpx.request(method, url + path)
    assert answer.status_code in (404, 405)
    assert f"there is no {method} {path}; there are POST {CHAT}" in answer.json()["error"]["message"]


# ---- real clients


def test_the_client_of_openai_reads_all_of_it(policy: Any) -> None:
    openai = pytest.importorskip("openai")
    own = desk(policy(SEARCHES, ANSWERS, SEARCHES, ANSWERS), examples=["Who?"])
    with served(own, token="key") as url, openai.OpenAI(base_url=f"{url}/v1", api_key="key") as client:
        (model,) = client.models.list().data
        asked = {"model": model.id, **QUESTION}
        whole = client.chat.completions.create(**asked)
        message = whole.choices[0].message
        assert (model.id, message.content) == ("night", "Kelan Orso")
        assert message.annotations[0].url_citation.title == "Mira"
        assert "Search: mentor of Mira" in message.reasoning_content
        with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            streamed = stream.get_final_completion()
        assert streamed.choices[0].message.content == message.content
        assert streamed.choices[0].message.reasoning_content == message.reasoning_content
        assert streamed.usage == whole.usage
        with pytest.raises(openai.NotFoundError, match="this server has night"):
            client.chat.completions.create(**QUESTION, model="gpt-9")


def test_the_client_of_openai_raises_what_a_stream_says_of_a_failed_search(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    openai = pytest.importorskip("openai")
    monkeypatch.setattr("holdfast.base.retries.Retries.pause", lambda *_, **__: None)
    with (
        served(desk(policy(SEARCHES, ANSWERS), broken=True)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client,
        pytest.raises(openai.APIError, match="a search failed"),
    ):
        list(client.chat.completions.create(**QUESTION, model="night", stream=True))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium here")
    running = Browser(program, tmp_path / "profile")
    yield running
    running.close()


def test_the_page_asks_and_shows_the_searches(browser: Browser, policy: Any, gate: Gate) -> None:
    foreign = "<img src=x onerror=document.title='taken'>"
    turns = (SEARCHES, f"<answer> {foreign} </answer>")
    own = desk(policy(*turns, before=gate), examples=["Who is the mentor of Mira?"], about="questions to try")
    with served(own, token="key") as url:
        browser.call("Page.navigate", url=url)

        def see(expression: str) -> None:
            wait_for(lambda: bool(browser.js(f"document.readyState === 'complete' && !!({expression})")), minutes=1)

        see("document.getElementById('token')?.offsetParent")  # it asks for the token, and for nothing else
        assert not browser.js("document.getElementById('question').offsetParent")
        browser.js("document.getElementById('token').value = 'key'; document.querySelector('#key button').click()")
        see("document.querySelector('#examples button')")
        assert browser.js("document.title") == "holdfast · night"
        browser.js("document.querySelector('#examples button').click()")
        gate.open.release()
        see("document.querySelectorAll('details').length === 2")  # while the next turn is sampled
        assert "mentor of Mira" in browser.js("document.querySelector('article').innerText")
        assert not browser.js("document.querySelector('.answer')")
        gate.open.release()
        see("document.querySelector('.answer')")
        assert browser.js("document.querySelector('.answer').textContent") == foreign
        assert browser.js("document.title") == "holdfast · night"
        asked = [
            event["params"]["request"]["url"]
            for event in browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        assert [address for address in asked if not address.startswith((url, "data:"))] == []
        thrown = [event for event in browser.events if event["method"] == "Runtime.exceptionThrown"]
        assert thrown == []
