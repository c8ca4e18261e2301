"""Models that help to make data of samples, as keys of a recipe: a judge, and one that rewrites.

Both are behind servers, since they are as a rule larger than what samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trl_r1.sampling.engines import EngineArguments, closing_sampler, open_servers
from trl_r1.sampling.server_address import KEY_VARIABLE

if TYPE_CHECKING:
    from trl_r1.reasoning_format import ReasoningFormat
    from trl_r1.sampling.model_judge import ModelJudge
    from trl_r1.sampling.tidying import Rewriter


@dataclass
class AssistantArguments:
    """Servers of a judge and of a model that rewrites; none of either by default."""

    judge_servers: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Servers of a model that compares the answer with the reference where no "
            "reward can grade it."
        },
    )
    judge_served_name: str | None = field(
        default=None, metadata={"help": "Its name there; None for the first they list."}
    )
    judge_votes: int = field(
        default=1, metadata={"help": "Verdicts an answer; the majority counts."}
    )
    judge_max_new_tokens: int = field(
        default=4096, metadata={"help": "Limit of what the judge says, in tokens."}
    )
    judge_key_variable: str = field(
        default=KEY_VARIABLE, metadata={"help": "Environment variable with its API key."}
    )
    rewrite_servers: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Servers of a model that writes the reasoning of kept samples anew, to be "
            "readable; what then fails a check stays as it was."
        },
    )
    rewrite_served_name: str | None = field(
        default=None, metadata={"help": "Its name there; None for the first they list."}
    )
    rewrite_key_variable: str = field(
        default=KEY_VARIABLE, metadata={"help": "Environment variable with its API key."}
    )

    def __post_init__(self) -> None:
        if self.judge_votes < 1:
            raise ValueError(f"judge_votes is {self.judge_votes}; use 1 or more")
        if self.judge_max_new_tokens < 1:
            raise ValueError(f"judge_max_new_tokens is {self.judge_max_new_tokens}; use 1 or more")
        for kind in ("judge", "rewrite"):
            if getattr(self, f"{kind}_served_name") and not getattr(self, f"{kind}_servers"):
                raise ValueError(f"{kind}_served_name is given, but {kind}_servers names none")
        for engine in (self._judge(), self._rewriter()):
            if engine is not None:
                engine.addresses()

    def record(self) -> dict[str, object]:
        """What samples depend on."""
        if not (self.judge_servers or self.rewrite_servers):
            return {}
        return {
            "judge": self.judge_served_name if self.judge_servers else False,
            "judge_votes": self.judge_votes,
            "rewrite": self.rewrite_served_name if self.rewrite_servers else False,
        }

    @contextmanager
    def open(self, fmt: ReasoningFormat) -> Iterator[tuple[ModelJudge | None, Rewriter | None]]:
        """The judge and the model that rewrites, for a while; None for one that is not there.

        Args:
            fmt: response format of reasoning rows.

        Raises:
            ServerError: the servers of one do not answer.
        """
        from trl_r1.sampling.model_judge import ModelJudge
        from trl_r1.sampling.tidying import Rewriter

        judge, rewriter = None, None
        with ExitStack() as stack:
            if (engine := self._judge()) is not None:
                sampler = stack.enter_context(closing_sampler(open_servers(engine)))
                judge = ModelJudge(
                    sampler,
                    fmt,
                    max_new_tokens=self.judge_max_new_tokens,
                    num_votes=self.judge_votes,
                )
            if (engine := self._rewriter()) is not None:
                rewriter = Rewriter(stack.enter_context(closing_sampler(open_servers(engine))))
            yield judge, rewriter

    def _judge(self) -> EngineArguments | None:
        return _servers(self.judge_servers, self.judge_served_name, self.judge_key_variable)

    def _rewriter(self) -> EngineArguments | None:
        return _servers(self.rewrite_servers, self.rewrite_served_name, self.rewrite_key_variable)


def _servers(urls: list[str], name: str | None, variable: str) -> EngineArguments | None:
    if not urls:
        return None
    return EngineArguments("server", servers=urls, served_name=name, server_key_variable=variable)
