"""Known sets of problems, each by the names of its columns on the Hub.

`dataset_name` of a recipe puts a local copy in the place of the Hub's. Sets that are made for
evaluation are the split `test`, whatever their source calls it.
"""

from __future__ import annotations

from trl_r1.tasks.columns import ColumnTask
from trl_r1.tasks.set_rows import (
    apps_row,
    dapo_row,
    human_eval_row,
    ifeval_row,
    live_code_bench_row,
    mbpp_row,
    openr1_row,
)

# Mathematics --------------------------------------------------------------------------------------

MATH = ColumnTask(
    name="math",
    source="DigitalLearningGmbH/MATH-lighteval",
    solution="{solution}",
    extract="boxed",
    reasoning="{solution}",
    columns={"level": "level", "subject": "type"},
).task()
MATH_500 = ColumnTask(
    name="math_500",
    source="HuggingFaceH4/MATH-500",
    columns={"level": "level", "subject": "subject"},
).task()
# The year's thirty problems; the source calls them `train`.
AIME_2024 = ColumnTask(
    name="aime_2024", source="HuggingFaceH4/aime_2024", splits={"test": "train"}
).task()
AIME_2025 = ColumnTask(name="aime_2025", source="math-ai/aime25").task()
# The set as it was first published repeats each problem a hundred times and wraps it in
# instructions; this is the mended one, and `dapo_row` takes either.
DAPO_MATH = ColumnTask(
    name="dapo_math",
    source="open-r1/DAPO-Math-17k-Processed:all",
    prompt="{question}",
    prepare=dapo_row,
    needs=("prompt",),
).task()
DEEPSCALER = ColumnTask(name="deepscaler", source="agentica-org/DeepScaleR-Preview-Dataset").task()
# DeepSeek-R1's traces: of each problem the first that is whole and was found right.
OPENR1_MATH = ColumnTask(
    name="openr1_math",
    source="open-r1/OpenR1-Math-220k",
    response="{trace}",
    columns={"origin": "source"},
    prepare=openr1_row,
    needs=("problem", "answer", "generations", "source"),
).task()
# Proofs and other problems without a boxed answer are left out.
NUMINA_MATH = ColumnTask(
    name="numina_math",
    source="AI-MO/NuminaMath-CoT",
    solution="{solution}",
    extract="boxed",
    reasoning="{solution}",
    columns={"origin": "source"},
).task()
NUMINA_MATH_1_5 = ColumnTask(
    name="numina_math_1_5",
    source="AI-MO/NuminaMath-1.5",
    reasoning="{solution}",
    columns={"origin": "source", "subject": "problem_type"},
    where={
        "problem_is_valid": "Yes",
        "solution_is_valid": "Yes",
        "question_type": "math-word-problem",
    },
).task()

# Code ---------------------------------------------------------------------------------------------

HUMAN_EVAL = ColumnTask(
    name="human_eval",
    source="openai/openai_humaneval",
    prompt="Complete this Python function. Give all of it, imports included, in one ```python "
    "block.\n\n```python\n{prompt}```",
    solution=None,
    grader="code_tests",
    columns={"tests": "tests", "entry_point": "entry_point"},
    prepare=human_eval_row,
    needs=("prompt", "test", "entry_point"),
).task()
MBPP = ColumnTask(
    name="mbpp",
    source="google-research-datasets/mbpp:full",
    prompt="{text}\nGive the Python program in one ```python block. It has to pass:\n{shown_tests}",
    solution=None,
    grader="code_tests",
    columns={"tests": "test_list", "test_setup_code": "test_setup_code"},
    prepare=mbpp_row,
    needs=("text", "test_list"),
).task()
# Programs that read standard input and write standard output, or a function by name.
APPS = ColumnTask(
    name="apps",
    source="hf://datasets/codeparrot/apps/{split}.jsonl",
    prompt="{question}\n\nGive the Python program in one ```python block.{starter}",
    solution=None,
    grader="code_tests",
    columns={"tests": "tests", "difficulty": "difficulty"},
    prepare=apps_row,
    needs=("question", "input_output"),
).task()
LIVE_CODE_BENCH = ColumnTask(
    name="live_code_bench",
    source="hf://datasets/livecodebench/code_generation_lite/test*.jsonl",
    prompt="{question_content}\n\nGive the Python program in one ```python block.{starter}",
    solution=None,
    grader="code_tests",
    columns={"tests": "tests", "difficulty": "difficulty", "date": "contest_date"},
    prepare=live_code_bench_row,
    needs=("question_content", "public_test_cases", "private_test_cases", "contest_date"),
).task()

# Multiple choice ----------------------------------------------------------------------------------

_BY_LETTER = "Answer this multiple choice question with the letter of the right option.\n\n"
MMLU = ColumnTask(
    name="mmlu",
    source="cais/mmlu:all",
    prompt=_BY_LETTER + "{question}",
    choices="choices",
    grader="choice",
    columns={"subject": "subject"},
    splits={"train": "auxiliary_train"},
).task()
MMLU_PRO = ColumnTask(
    name="mmlu_pro",
    source="TIGER-Lab/MMLU-Pro",
    prompt=_BY_LETTER + "{question}",
    choices="options",
    grader="choice",
    columns={"subject": "category"},
    splits={"train": "validation"},
).task()
# The right option comes first in every row, so they are put in another order.
GPQA_DIAMOND = ColumnTask(
    name="gpqa_diamond",
    source="Idavidrein/gpqa:gpqa_diamond",
    prompt=_BY_LETTER + "{Question}",
    solution="{Correct Answer}",
    choices=("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
    shuffle_choices=True,
    grader="choice",
    columns={"subject": "Subdomain"},
    splits={"test": "train"},
).task()
ARC_CHALLENGE = ColumnTask(
    name="arc_challenge",
    source="allenai/ai2_arc:ARC-Challenge",
    prompt=_BY_LETTER + "{question}",
    solution="{answerKey}",
    choices="choices",
    grader="choice",
).task()

# Instructions and chat ----------------------------------------------------------------------------

IFEVAL = ColumnTask(
    name="ifeval",
    source="google/IFEval",
    prompt="{prompt}",
    solution=None,
    kind="general",
    grader="instruction",
    columns={"constraints": "constraints"},
    prepare=ifeval_row,
    needs=("prompt", "instruction_id_list", "kwargs"),
    splits={"test": "train"},
).task()
SMOLTALK = ColumnTask(
    name="smoltalk",
    source="HuggingFaceTB/smol-smoltalk",
    solution=None,
    kind="general",
    messages="messages",
    columns={"origin": "source"},
).task()
