"""HTTP client of one sglang server: token ids in, tokens, logprobs and cache tiers out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import requests

from hicache_bench.errors import BenchError, NoAnswer

TIERS = ("device", "host", "storage")


@dataclass(frozen=True)
class Answer:
    """What one request gave.

    prompt, cached: tokens. tiers: cached tokens by tier, in the order of TIERS; they add up to
    `cached`. tokens, logprobs: the generated token ids and their natural-log probabilities.
    entered: when the request's first forward pass began, in the server's seconds; the same for all
    requests of one pass. None where the server does not tell (it does with --enable-metrics).
    """

    prompt: int
    cached: int
    tiers: tuple[int, int, int]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    entered: float | None = None


class Engine(Protocol):
    """What a workload drives, one request at a time."""

    def generate(self, ids: Sequence[int], new_tokens: int) -> Answer:
        """Serve one prompt greedily to exactly `new_tokens` tokens."""
        ...

    def flush(self) -> None:
        """Empty the cache, every tier."""
        ...


class BusyEngine(Engine, Protocol):
    """An engine that several requests can be sent to at once."""

    def generate_together(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Answer]:
        """Serve the prompts of one call; their answers are in the same order."""
        ...

    def another(self) -> BusyEngine:
        """The same engine, for one more client that sends at the same time; to be closed."""
        ...

    def close(self) -> None:
        """Give up the connection."""
        ...


class Client:
    """Drives the server at `url`, one call at a time.

    timeout_s: longest silence within one request, in seconds. headers: sent with each request.
    """

    def __init__(
        self, url: str, timeout_s: float = 300.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._headers = headers
        self._session = requests.Session()
        self._session.headers.update(headers or {})
        self._session.trust_env = False  # a proxy from the environment has no business on 127.0.0.1

    def generate(self, ids: Sequence[int], new_tokens: int) -> Answer:
        """POST /generate: greedy, end-of-sequence ignored, with logprobs. Raises BenchError."""
        return _answer(self._generate(list(ids), new_tokens), None, len(ids), new_tokens)

    def generate_together(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Answer]:
        """The same for several prompts in one POST /generate, which reach the scheduler together.

        Raises BenchError.
        """
        reply = self._generate([list(ids) for ids in prompts], new_tokens)
        return [_answer(reply, index, len(ids), new_tokens) for index, ids in enumerate(prompts)]

    def another(self) -> Client:
        """One more client of the same server, with a connection of its own."""
        return Client(self.url, self._timeout_s, self._headers)

    def _generate(self, ids: list[Any], new_tokens: int) -> requests.Response:
        body = {
            "input_ids": ids,
            "return_logprob": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        }
        reply = self._request("POST", "/generate", json=body)
        if reply.status_code != 200:
            raise _refused(reply)
        return reply

    def flush(self, timeout_s: float = 30.0) -> None:
        """POST /flush_cache, again while it says 400: the last request is still being retired.

        Raises BenchError after `timeout_s` seconds of that, and for any other refusal.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            reply = self._request("POST", "/flush_cache")
            if reply.status_code == 200:
                return
            if reply.status_code != 400 or time.monotonic() > deadline:
                raise _refused(reply)
            time.sleep(0.1)

    def server_info(self) -> dict[str, Any]:
        """GET /server_info: the server's arguments as it resolved them, and its version."""
        reply = self._request("GET", "/server_info")
        if reply.status_code != 200:
            raise _refused(reply)
        info: dict[str, Any] = reply.json()
        return info

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _request(self, method: str, path: str, json: Any = None) -> requests.Response:
        try:
            return self._session.request(
                method, self.url + path, json=json, timeout=self._timeout_s
            )
        except requests.RequestException as error:
            raise NoAnswer(f"{method} {self.url}{path}: no answer ({error})") from error


def _refused(reply: requests.Response) -> BenchError:
    return BenchError(
        f"{reply.request.method} {reply.url}: expected status 200, got {reply.status_code}: "
        f"{reply.text.strip()[:500]}"
    )


def _answer(reply: requests.Response, index: int | None, prompt: int, new_tokens: int) -> Answer:
    """The answer in a reply, or one of several in it."""
    try:
        value = reply.json()
        meta = (value if index is None else value[index])["meta_info"]
        pairs = [(int(entry[1]), float(entry[0])) for entry in meta["output_token_logprobs"]]
        cached = int(meta["cached_tokens"])
        details = meta.get("cached_tokens_details") or {"device": cached}
        tiers = (
            int(details.get("device", 0)),
            int(details.get("host", 0)),
            int(details.get("storage", 0)),
        )
        entered = meta.get("forward_entry_time")
        entered = None if entered is None else float(entered)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BenchError(
            f"{reply.url}: an answer without {error}; expected meta_info with cached_tokens and "
            f"output_token_logprobs; is this an sglang server with --enable-cache-report? "
            f"{reply.text[:300]}"
        ) from error
    if meta.get("prompt_tokens") != prompt or len(pairs) != new_tokens or sum(tiers) != cached:
        raise BenchError(
            f"{reply.url}: expected {prompt} prompt tokens, {new_tokens} new ones and tiers that "
            f"add up to the cached tokens; got {meta.get('prompt_tokens')}, {len(pairs)}, "
            f"{tiers} against {cached}"
        )
    tokens, logprobs = zip(*pairs, strict=True)
    if not all(math.isfinite(logprob) for logprob in logprobs):
        raise BenchError(f"{reply.url}: expected finite logprobs; got {logprobs}")
    return Answer(prompt, cached, tiers, tokens, logprobs, entered)
