"""The client over real HTTP, against a server in this process that answers as it is told."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hicache_bench.client import Client
from hicache_bench.errors import BenchError


class Script(http.server.ThreadingHTTPServer):
    """Gives its replies in order, and remembers the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Script

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.path, json.loads(body) if body else None))
        status, reply = self.server.replies.pop(0)
        text = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def meta(**changes: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "cached_tokens_details": {"device": 0, "host": 2},
        "output_token_logprobs": [[-0.5, 11, None], [-1.5, 12, None]],
        **changes,
    }


def test_generate_sends_token_ids_and_reads_tokens_logprobs_and_tiers(script: Script) -> None:
    script.replies = [(200, {"meta_info": meta()})]
    answer = Client(script.url).generate([5, 6, 7], 2)
    assert answer.tokens == (11, 12)
    assert answer.logprobs == (-0.5, -1.5)
    assert (answer.prompt, answer.cached, answer.tiers) == (3, 2, (0, 2, 0))
    path, body = script.requests[0]
    assert path == "/generate"
    assert body["input_ids"] == [5, 6, 7]
    assert body["return_logprob"] is True
    assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}


def test_prompts_of_one_call_go_in_one_request_and_come_back_in_their_order(script: Script) -> None:
    long = meta(prompt_tokens=4, cached_tokens=0, cached_tokens_details=None)
    entered = {"forward_entry_time": 1795972935.5959828}
    script.replies = [(200, [{"meta_info": {**long, **entered}}, {"meta_info": meta(**entered)}])]
    one, other = Client(script.url).generate_together([[5, 6, 7, 8], [5, 6, 7]], 2)
    assert (one.prompt, one.cached, other.prompt, other.cached) == (4, 0, 3, 2)
    assert one.entered == other.entered == 1795972935.5959828
    ((path, body),) = script.requests
    assert path == "/generate"
    assert body["input_ids"] == [[5, 6, 7, 8], [5, 6, 7]]


def test_a_server_that_does_not_tell_when_a_pass_began_is_no_error(script: Script) -> None:
    script.replies = [(200, {"meta_info": meta()})]
    assert Client(script.url).generate([5, 6, 7], 2).entered is None


def test_answers_that_are_missing_are_one_clear_error(script: Script) -> None:
    script.replies = [(200, [{"meta_info": meta()}])]
    with pytest.raises(BenchError, match="expected meta_info"):
        Client(script.url).generate_together([[5, 6, 7], [5, 6, 7]], 2)


def test_another_client_has_a_connection_of_its_own_and_the_same_headers(script: Script) -> None:
    first = Client(script.url, headers={"Authorization": "Bearer x"})
    other = first.another()
    first.close()
    script.replies = [(200, {"meta_info": meta()})]
    assert other.generate([5, 6, 7], 2).prompt == 3
    assert other._session is not first._session
    assert other._session.headers["Authorization"] == "Bearer x"
    other.close()


@pytest.mark.parametrize(
    ("changes", "tiers"),
    [
        ({"cached_tokens": 0, "cached_tokens_details": None}, (0, 0, 0)),
        ({"cached_tokens_details": None}, (2, 0, 0)),
        ({"cached_tokens_details": {"device": 1, "host": 0, "storage": 1}}, (1, 0, 1)),
    ],
)
def test_tiers_that_are_not_told_are_the_device(
    script: Script, changes: dict[str, Any], tiers: tuple[int, int, int]
) -> None:
    script.replies = [(200, {"meta_info": meta(**changes)})]
    assert Client(script.url).generate([5, 6, 7], 2).tiers == tiers


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((400, "no room"), "expected status 200, got 400: no room"),
        ((200, "<html>"), "expected meta_info"),
        ((200, {"text": "x"}), "expected meta_info"),
        ((200, {"meta_info": {"prompt_tokens": 3}}), "expected meta_info"),
        ((200, {"meta_info": meta(output_token_logprobs=[[-0.5, 11, None]])}), "2 new ones"),
        ((200, {"meta_info": meta(prompt_tokens=4)}), "expected 3 prompt tokens"),
        ((200, {"meta_info": meta(cached_tokens=3)}), "add up to the cached tokens"),
        (
            (200, {"meta_info": meta(output_token_logprobs=[[-0.5, 11], [float("nan"), 12]])}),
            "expected finite logprobs",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_clear_error(
    script: Script, reply: tuple[int, Any], says: str
) -> None:
    script.replies = [reply]
    with pytest.raises(BenchError, match=says) as caught:
        Client(script.url).generate([5, 6, 7], 2)
    assert script.url in str(caught.value)


def test_flush_tries_again_while_the_last_request_is_retired(script: Script) -> None:
    script.replies = [(400, "pending"), (400, "pending"), (200, "flushed")]
    Client(script.url).flush()
    assert [path for path, _ in script.requests] == ["/flush_cache"] * 3


def test_flush_gives_up(script: Script) -> None:
    script.replies = [(400, "pending")] * 3
    with pytest.raises(BenchError, match="got 400: pending"):
        Client(script.url).flush(timeout_s=0)
    script.replies = [(500, "broken")]
    with pytest.raises(BenchError, match="got 500: broken"):
        Client(script.url).flush()
    assert len(script.requests) == 2


def test_nobody_listening_is_one_clear_error(script: Script) -> None:
    url = script.url
    script.server_close()
    with pytest.raises(BenchError, match=f"GET {url}/server_info: no answer"):
        Client(url).server_info()
