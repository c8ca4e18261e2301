"""Tidying of accepted samples before they become data (paper section 2.3.1: the outputs of R1-Zero
are made readable).

By rules, which change no word: white space, line breaks, characters that nobody sees. By a model
behind servers, which rewrites the reasoning; the caller keeps a rewriting only where it passes
everything that the original passed. Left out: corrections of what is said.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from trl_r1.reasoning_format import ReasoningFormat
from trl_r1.sampling import Sample, Sampler

# Zero-width spaces, byte order marks, soft hyphens, and controls other than tab and line feed. The
# joiners stay: Persian, Hindi and others are spelt with them.
_UNSEEN = re.compile("[\u00ad\u200b\u2060\ufeff\u0000-\u0008\u000b-\u001f\u007f]")
_TRAILING = re.compile(r"[^\S\n]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")

REWRITE_PROMPT = """\
Below are a question and somebody's reasoning that leads to the right answer. Write the \
reasoning again so that it is easy to read: whole sentences in the language of the question, short \
paragraphs with a blank line between them, no headings, no code blocks. Keep every step that the \
answer needs, in the same order, and every check of it; add nothing, and do not change the answer. \
Reply with the reasoning and nothing else.

QUESTION
{question}

REASONING
{reasoning}

ANSWER
{answer}"""


def tidy(text: str) -> str:
    """The text without unseen characters and superfluous white space at ends and between
    paragraphs; its words and indents stay as they are."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _TRAILING.sub("", _UNSEEN.sub("", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


@dataclass(frozen=True)
class Rewriter:
    """A model that writes reasoning anew.

    Attributes:
        sampler: where the model is.
        max_new_tokens: limit of a rewriting, in tokens.
    """

    sampler: Sampler
    max_new_tokens: int = 32768

    def rewrite(
        self, questions: Sequence[str], targets: Sequence[str], fmt: ReasoningFormat, seed: int
    ) -> list[str | None]:
        """Targets with their reasoning written anew; None where the model gave nothing usable.

        Args:
            questions: B questions.
            targets: B well-formed responses, in the format `fmt`.
            fmt: response format.
            seed: of the sampling.
        """
        parts = [fmt.parse(target) for target in targets]
        prompts = [
            [
                {
                    "role": "user",
                    "content": REWRITE_PROMPT.format(
                        question=question, reasoning=part.reasoning, answer=part.answer
                    ),
                }
            ]
            for question, part in zip(questions, parts, strict=True)
        ]
        if not prompts:
            return []
        drawn = self.sampler.sample(
            prompts,
            num_samples=1,
            temperature=0.0,
            top_p=1.0,
            max_new_tokens=self.max_new_tokens,
            seed=seed,
        )
        return [
            _rewritten(group[0], fmt, part.answer or "")
            for group, part in zip(drawn, parts, strict=True)
        ]


def _rewritten(sample: Sample, fmt: ReasoningFormat, answer: str) -> str | None:
    # A reasoning model thinks before it writes; only what it writes counts.
    text = tidy(sample.text.rpartition("</think>")[2])
    if sample.is_truncated or not text:
        return None
    target = fmt.render(text, answer)
    return target if fmt.parse(target).is_well_formed else None
