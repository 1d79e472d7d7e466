"""Makes the vocabularies and goldens of this folder.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 transformers==5.24.0 jinja2==3.1.6 torch
    python make.py

Every golden comes from one of those packages: ids from `tokenizers` and `sentencepiece`, rendered conversations from
`transformers`' own Jinja environment, distributions from `transformers`' logits processors.
`templates/smollm2.jinja` is the template of SmolLM2-135M-Instruct (Apache-2.0); the others were written for these tests.
"""

import datetime
import io
import json
import pathlib

import jinja2
import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent

CORPUS = """
The ship leaves the harbour at 7:45 and doesn't return before 12:30. We'll see whether it's late; they've said it isn't.
In 2024 about 1234567 containers passed here, 89 of them twice, and 100 were never found (number 000123 was).

"Where is the cargo?" she asked. "It's in hold 3," he said -- "or it was, in 1999!"
fn main() {
    let total = 10 + 20 * 300;
    println!("{}", total);
\tif total >= 610 { return; }
}

Ünïcödé: café, naïve, Straße, Ελληνικά, русский текст, 日本語の文章です。中文字符也在这里。 한국어 텍스트
हिन्दी में लिखा हुआ वाक्य, नमस्ते दुनिया। ภาษาไทยก็มี น้ำ
Emoji 😀 and 🚢🚢, a zero-width\u200djoiner, and e\u0301 apart from \u00e9.
HELLO WORLD, I'M HERE AND YOU'RE NOT, WE'LL SEE. 'Tis so. a's b't c're d've e'm f'll g'd
    indented by four
        and by eight

x=1;y=22;z=333;w=4444;;;???...!!!  $100+$200=$300 <a|b> ^~^
"""

TEXTS = [
    "",
    "a",
    " ",
    "   ",
    "\n\n\n",
    " \n \n  x",
    "The ship leaves the harbour at 7:45.",
    "it doesn't, we'll see, they've said; IT'S NOT, WE'LL SEE, YOU'RE",
    "1 22 333 4444 55555 666666 7777777 1234567 000123",
    "in 2024 and 1999, 12:30",
    "x=1;y=22;z=333;;;???...!!!\n\n$100+$200=$300 <a|b> ^~^",
    "fn main() {\n    let total = 10;\n\tif total { return; }\n}\n",
    "café naïve Straße Ünïcödé",
    "e\u0301 apart from \u00e9, cafe\u0301",
    "Ελληνικά русский текст",
    "日本語の文章です。中文字符也在这里。",
    "हिन्दी में लिखा हुआ, नमस्ते दुनिया।",
    "ภาษาไทยก็มี น้ำ",
    "😀 and 🚢🚢 zero\u200djoin",
    "trailing spaces   ",
    "  leading and   inner  spaces",
    "tab\tand\r\ncarriage return\r\n\r\n",
    "Roman Ⅻ, half ½, Arabic-Indic ١٢٣, superscript x²",
    "no\u00a0break\u3000wide space",
    "zebra zebra",
    "'Tis a's b't 's",
    "<|im_start|>user\nhello<|im_end|>\n",
    "\u0000\u0001\u007f\ufffd",
    "HeLLo WoRLD camelCase snake_case kebab-case",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def cut(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


# As in the tokenizer.json of a model of each family; `default` is the rule of GGUF readers, written in the same terms.
PRE = {
    "gpt-2": [byte_level(True)],
    "smollm": [pre_tokenizers.Digits(True), byte_level(True)],
    "llama-bpe": [cut(LLAMA3), byte_level()],
    "qwen2": [cut(QWEN2), byte_level()],
    "qwen35": [cut(QWEN35), byte_level()],
    "default": [cut(r"[\p{P}\$\+<=>\^~\|]+"), cut(GPT2), cut(r"\p{N}+"), cut(r"[0-9][0-9][0-9]"), byte_level()],
}

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (HERE / name).write_text(text + "\n", encoding="utf-8")


def train():
    """One vocabulary whose merges cross every boundary that some pre-tokenizer draws."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=CONTROLS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=6,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True) * 2, trainer)
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    # A word that no merges make: the pre-tokenizers that take whole words find it.
    vocab["Ġzebra"] = len(vocab)
    vocab["<think>"] = len(vocab)
    vocab["<|tool|>"] = len(vocab)
    merges = [tuple(m) for m in state["model"]["merges"]]
    return vocab, merges


def built(vocab, merges, pre):
    whole = pre == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole))
    if pre.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRE[pre])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROLS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ["<think>", "<|tool|>"]])
    return tokenizer


def text_ids(tokenizer, text):
    """The ids with special tokens as text, whichever way the package marks them."""
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    return ids


def make_bpe():
    vocab, merges = train()
    tokens = [t for t, _ in sorted(vocab.items(), key=lambda item: item[1])]
    types = [3 if t in CONTROLS else 4 if t in ("<think>", "<|tool|>") else 1 for t in tokens]
    cases = {}
    for pre in PRE:
        tokenizer = built(vocab, merges, pre)
        cases[pre] = [
            {
                "text": text,
                "ids": text_ids(tokenizer, text),
                "template_ids": tokenizer.encode(text, add_special_tokens=False).ids,
            }
            for text in TEXTS
        ]
        for case in cases[pre]:
            wanted = normalizers.NFC().normalize_str(case["text"]) if pre.startswith("qwen") else case["text"]
            assert tokenizer.decode(case["ids"], skip_special_tokens=False) == wanted, (pre, case)
    for a in PRE:
        for b in PRE:
            assert a == b or cases[a] != cases[b], f"the texts do not tell {a} from {b}"
    vocabulary = {
        "model": "gpt2",
        "tokens": tokens,
        "merges": [" ".join(m) for m in merges],
        "token_types": types,
        "bos": 1,
        "eos": 2,
        "unk": 0,
        "pad": 2,
    }
    write("bpe.json", {"made_by": f"tokenizers {tokenizers.__version__}", "vocab": vocabulary, "cases": cases})

    tokenizer = built(vocab, merges, "llama-bpe")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]),
        ]
    )
    tokenizer.enable_truncation(4)
    write("tokenizer.json", json.loads(tokenizer.to_str()))
    tokenizer.no_truncation()
    cases = [
        {"text": t, "with_specials": tokenizer.encode(t).ids, "ids": text_ids(tokenizer, t)} for t in TEXTS
    ]
    write("tokenizer_cases.json", {"made_by": f"tokenizers {tokenizers.__version__}", "cases": cases})


def make_sentence():
    out = {"made_by": f"sentencepiece {sentencepiece.__version__}", "models": []}
    for prefix in (True, False):
        stream = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((CORPUS * 2).splitlines()),
            model_writer=stream,
            model_type="bpe",
            vocab_size=620,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=prefix,
            character_coverage=0.98,
            max_sentencepiece_length=8,
            minloglevel=2,
        )
        sp = sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())
        ids = range(sp.get_piece_size())
        kind = lambda i: 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1
        vocabulary = {
            "model": "llama",
            "tokens": [sp.id_to_piece(i) for i in ids],
            "scores": [sp.get_score(i) for i in ids],
            "token_types": [kind(i) for i in ids],
            "bos": sp.bos_id(),
            "eos": sp.eos_id(),
            "unk": sp.unk_id(),
            "add_space_prefix": prefix,
        }
        texts = TEXTS + ["aaaaaaaaaaa", "sssss lllll eeeeeee nnnnn", "thethethe ththth", "......;;;;;"]
        texts = [t for t in texts if "\0" not in t]
        cases = [{"text": t, "ids": sp.encode(t)} for t in texts]
        out["models"].append({"vocab": vocabulary, "cases": cases})
    write("sentence.json", out)


def make_chat():
    conversation = [
        {"role": "system", "content": "  Be brief. "},
        {"role": "user", "content": "What is a ship?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA big boat."},
        {"role": "user", "content": "And \"a\nboat\"? {{ 7*7 }} <|im_end|>"},
    ]
    tools = [
        {"type": "function", "function": {"name": "find", "description": "Ünï <b>'q'</b> & \"x\"", "parameters": {
            "zeta": 1.0, "alpha": [1, 2.5, 1e20, 1e-7], "none": None, "yes": True, "empty": {}, "nothing": []}}},
        {"name": "second", "items": [[], [[1]], {"a": {"b": "c\\d\te\u0001"}}]},
    ]
    values = [True, False, None, 3, -2.0, 0.1, 1e16, 1.5e-5, "  it's \"so\" ", {"b": 1, "a": [True, None, "x'y"]}, [1, "two", 3.0],
              [], {}, ["it's"], "ünï\u2028"]
    base = {"bos": "<s>", "eos": "</s>", "generation_prompt": True, "date": None, "extra": {}}
    plan = [
        ("smollm2", conversation, {}),
        ("smollm2", conversation[1:2], {}),
        ("smollm2", conversation, {"generation_prompt": False}),
        ("smollm2", [], {}),
        ("llama", conversation, {"date": [2024, 7, 26]}),
        ("llama", conversation[1:], {"date": [2025, 12, 3], "extra": {"tools": tools}}),
        ("llama", conversation[1:], {"generation_prompt": False}),
        ("llama", conversation[1:2], {"bos": None}),
        ("llama", [{"role": "robot", "content": "x"}], {}),
        ("llama", [conversation[1], conversation[1]], {}),
        ("qwen", conversation, {}),
        ("qwen", conversation + [{"role": "note", "content": "skip me"}], {"extra": {"tools": tools}}),
        ("qwen", conversation[1:2], {"extra": {"enable_thinking": False}}),
        ("qwen", conversation[1:3], {"generation_prompt": False}),
        ("python", conversation, {"extra": {"values": values}}),
        ("python", [], {"generation_prompt": False, "extra": {"values": tools}}),
        ("generation", conversation, {}),
    ]
    cases = []
    for name, messages, options in plan:
        options = base | options
        source = (HERE / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
        template = chat_template_utils._compile_jinja_template(source)
        given = {"messages": messages, "tools": None, "documents": None}
        given["add_generation_prompt"] = options["generation_prompt"]
        for key in ("bos", "eos"):
            if options[key] is not None:
                given[f"{key}_token"] = options[key]
        # The environment's own clock, replaced by the date of the case or by nothing.
        template.environment.globals.pop("strftime_now", None)
        if options["date"]:
            day = datetime.datetime(*options["date"])
            given["strftime_now"] = day.strftime
        case = {"template": name, "messages": messages, "options": options}
        try:
            case["text"] = template.render(**given, **options["extra"]) if "tools" not in options["extra"] else (
                template.render(**(given | options["extra"])))
        except jinja2.exceptions.TemplateError as error:
            case["raises"] = str(error)
        cases.append(case)
    made_by = f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}"
    write("chat.json", {"made_by": made_by, "cases": cases})


def make_dates():
    pattern = "%Y %y %m %d %e %B %b %A %a %j %H %I %M %S %p %% %-d %-m"
    seconds = [0, 951782400, 1078012799, 1722000000, 1735689599, 1735689600, 4102444800, 4107542400, 253402300799]
    utc = datetime.timezone.utc
    cases = [{"seconds": s, "text": datetime.datetime.fromtimestamp(s, utc).strftime(pattern)} for s in seconds]
    write("dates.json", {"pattern": pattern, "cases": cases})


def make_sampler():
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(60, generator=generator) * 3, torch.linspace(-4, 4, 40), torch.linspace(0, 1e-3, 7)]
    rows[0][5] = float("-inf")
    plan = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.5, "top_p": 0.9},
        {"temperature": 0.8, "min_p": 0.1},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 0.3, "top_p": 0.05},
        {"temperature": 1.0, "repetition_penalty": 1.3, "top_k": 10, "history": [1, 2, 2, 6]},
        {"temperature": 2.0, "repetition_penalty": 0.7, "history": [0, 3]},
    ]
    cases = []
    for row in rows:
        for options in plan:
            scores = row[None].to(torch.float64)
            history = torch.tensor([options.get("history", [])], dtype=torch.int64)
            if "repetition_penalty" in options:
                penalty = transformers.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"])
                # In F32, as the logits are.
                scores = penalty(history, scores.float()).double()
            scores = transformers.TemperatureLogitsWarper(options["temperature"])(history, scores)
            if "top_k" in options:
                scores = transformers.TopKLogitsWarper(options["top_k"])(history, scores)
            if "top_p" in options:
                scores = transformers.TopPLogitsWarper(options["top_p"])(history, scores)
            if "min_p" in options:
                scores = transformers.MinPLogitsWarper(options["min_p"])(history, scores)
            probabilities = scores.softmax(-1)[0].tolist()
            logits = [None if x == float("-inf") else x for x in row.tolist()]
            cases.append({"logits": logits, "options": options, "probabilities": [round(p, 12) for p in probabilities]})
    write("sampler.json", {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}", "cases": cases})


if __name__ == "__main__":
    make_bpe()
    make_sentence()
    make_chat()
    make_dates()
    make_sampler()
