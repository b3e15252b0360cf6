#!/usr/bin/env python3
"""Writes tests/fixtures/text: strings with the ids that Hugging Face `tokenizers` gives them.

    pip install tokenizers==0.23.3
    scripts/make_tokenizer_fixtures.py [--shared ../shared]

For each tokenizer <name>.json holds
  strings   [[text or {"hex": bytes}, ids], ...]
            the ids hold what the post-processor adds, BOS not doubled
  questions [[file, line, ids, hash], ...]
            GSM8K questions by place: the number of ids, FNV-1a of the ids
  decodes   [[ids, text, text without special tokens or null when equal], ...]
Two small tokenizers are made here, whole: llama3_like and metaspace_like.
"""

import argparse
import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import AddedToken, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "fixtures" / "text"

WORDS = """the a of and to in that it was for on with as his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each about how up out them then
she many some so these would other into has more her two like him see time could no make than first been
its who now people my made over did down only way find use may water long little very after words called
just where most know numbers total dollars each times plus minus equals cost sum apples sold""".split()

CODE = [
    "def add(a, b):\n    return a + b\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += x[i] * 2.5e-3f;\n}\r\n",
    "SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name;",
    '{"key": [1, 2.0, null, true], "nested": {"a": "b\\n"}}',
    "<div class=\"x\">It's &amp; they'll, WE'VE, I'D</div>",
    "$\\frac{1}{2}x^2 + \\sqrt{3} \\le 10^{-6}$ so \\boxed{42}",
    "https://example.org/a_b?c=d&e=%20f#g ~/.config/file.tar.gz",
    'if (x != y && !(a || b)) { throw std::runtime_error("no"); }',
    "1,234,567.89 + 0x1F - 3/4 = #### 12",
    "    indented\n        more\n\n\n\tback   \n",
]

PARTS = [
    "a",
    "b",
    "Z",
    "é",
    "e\u0301",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "1",
    "23",
    "4567",
    "\u00a0",
    "\u3000",
    "\u200d",
    "\u200b",
    "😀",
    "👩\u200d👩\u200d👧",
    "🇫🇷",
    "👍🏽",
    "你好",
    "世界",
    "日本語",
    "テスト",
    "が",
    "か\u3099",
    "한국어",
    "각",
    "\u1100\u1161\u11a8",
    "'s",
    "'LL",
    "'\u017f",
    "'RE",
    "\u212a",
    "\u0301",
    "\u0323\u0301",
    "\u0301\u0323",
    "!",
    "...",
    "?!",
    "_",
    "-",
    "def ",
    "\x00",
    "\x7f",
    "\u180e",
    "\x85",
    "\u2028",
    "ß",
    "ﬁ",
    "Ω",
    "\u2126",
    "\u212b",
    "²",
    "Ⅷ",
    "٣",
    "๑",
    "กำ",
    "▁",
    "<0x0A>",
    "\ufdfd",
    "\ufeff",
    "Привет",
    "שלום",
    "مرحبا",
    "नमस्ते",
    "\U0001d400",
    "\U00020000",
    "\U0001d2c0",
    "\U00031350",
    "\u1c89",
    "\ufffd",
    "hello",
    " world",
    "Once upon a time",
    " friend",
]

BAD_BYTES = [
    0x61,
    0x20,
    0xFF,
    0xC3,
    0xA9,
    0xE4,
    0xBD,
    0xA0,
    0xF0,
    0x9F,
    0x98,
    0x80,
    0xED,
    0xA0,
    0xF4,
    0x90,
    0xC0,
    0x0A,
]


def strings_for(tokenizer, rnd, count):
    """Fixed cases, then random ones, each once."""
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    texts = ["", " ", "\n", "a", "▁"] + CODE + PARTS
    texts += [c * n for c in " \n\ta1!" for n in (2, 3, 4, 7, 16, 65, 200)]
    texts += [" " * n + "x" for n in (1, 2, 3, 9)] + ["x" + " " * n for n in (1, 2, 3, 9)]
    for token in added:
        texts += [
            token,
            f"x{token}y",
            f" {token} ",
            f"{token}{token}",
            f"a \n{token}\t b",
            token[:-1],
        ]
    texts += [bytes(rnd.choice(BAD_BYTES) for _ in range(rnd.randrange(1, 9))) for _ in range(150)]
    while len(texts) < count:
        kind = rnd.randrange(3)
        if kind == 0:
            text = " ".join(rnd.choice(WORDS) for _ in range(rnd.randrange(1, 12)))
        elif kind == 1:
            text = "".join(rnd.choice(PARTS + added) for _ in range(rnd.randrange(2, 9)))
        else:
            text = (
                rnd.choice(WORDS).title()
                + rnd.choice(PARTS)
                + rnd.choice(CODE)[: rnd.randrange(1, 25)]
            )
        texts.append(text)
    return list(dict.fromkeys(texts))


def encode(tokenizer, text):
    ids = tokenizer.encode(text).ids
    # A text that starts with BOS gets no second one here; `tokenizers` itself would add it.
    framed = tokenizer.encode("a").ids
    prefix = framed[: framed.index(tokenizer.encode("a", add_special_tokens=False).ids[0])]
    if prefix and ids[: 2 * len(prefix)] == prefix * 2:
        ids = ids[len(prefix) :]
    return ids


def fnv1a(ids):
    value = 0xCBF29CE484222325
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def decodes_for(tokenizer, rnd, rows, count):
    size = tokenizer.get_vocab_size()
    special = list(tokenizer.get_added_tokens_decoder())
    sequences = [ids for _, ids in rng_sample(rnd, rows, count // 3)]
    while len(sequences) < count:
        ids = [rnd.randrange(size + 3) for _ in range(rnd.randrange(1, 9))]
        if rnd.randrange(3) == 0:  # bytes, or tokens close to them
            ids = [rnd.randrange(min(size, 260)) for _ in ids]
        if special and rnd.randrange(3) == 0:
            ids.insert(rnd.randrange(len(ids) + 1), rnd.choice(special))
        sequences.append(ids)
    out = []
    for ids in sequences:
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        skipped = tokenizer.decode(ids, skip_special_tokens=True)
        out.append([ids, whole, None if whole == skipped else skipped])
    return out


def rng_sample(rnd, rows, count):
    return rnd.sample(rows, min(count, len(rows)))


def write(path, value):
    """One row a line, so that a change shows what changed."""

    def rows(name):
        lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in value[name]]
        return f'"{name}":[\n' + ",\n".join(lines) + "\n]"

    path.write_text("{" + ",\n".join(rows(name) for name in value) + "}\n")


def fixture(name, tokenizer, gsm8k, strings, questions, decodes):
    rnd = random.Random(name)
    rows = []
    for text in strings_for(tokenizer, rnd, strings):
        given = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        rows.append(
            [text if isinstance(text, str) else {"hex": text.hex()}, encode(tokenizer, given)]
        )
    places = []
    for line in range(questions):
        file = "train.jsonl" if line % 2 else "test.jsonl"
        ids = encode(tokenizer, json.loads(gsm8k[file][line])["question"])
        places.append([file, line, len(ids), f"{fnv1a(ids):016x}"])
    write(
        OUT / f"{name}.json",
        {
            "strings": rows,
            "questions": places,
            "decodes": decodes_for(tokenizer, rnd, rows, decodes),
        },
    )
    print(f"{name}: {len(rows)} strings, {len(places)} questions")


def train(tokenizer, vocab_size, alphabet):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=alphabet,
        show_progress=False,
        special_tokens=["<unk>"] if tokenizer.model.unk_token else [],
    )
    rnd = random.Random(3)
    text = [" ".join(rnd.choice(WORDS) for _ in range(30)) for _ in range(200)] + CODE
    tokenizer.train_from_iterator(text, trainer)


def llama3_like():
    """Byte-level, up to three digits a word, ignore_merges with tokens that no merge makes, BOS."""
    tokenizer = Tokenizer(models.BPE())
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 400, pre_tokenizers.ByteLevel.alphabet())
    file = json.loads(tokenizer.to_str())
    vocab = file["model"]["vocab"]
    for token in ("Ġzebra", "Once", "123"):  # whole words that no merge leads to
        vocab.setdefault(token, len(vocab))
    file["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.add_special_tokens(
        [AddedToken("<|eot|>", special=True, normalized=False, rstrip=True)]
    )
    tokenizer.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("alone", single_word=True, normalized=False),
            AddedToken("<|e", normalized=False),
        ]
    )
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A $B",
                special_tokens=[("<|begin_of_text|>", bos)],
            ),
        ]
    )
    return tokenizer, {
        "bos_token": "<|begin_of_text|>",
        "eos_token": {"content": "<|end_of_text|>"},
    }


def metaspace_like():
    """Metaspace, fused unknowns, merges as strings, EOS at the end, normalized added tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s{2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first"),
            pre_tokenizers.Digits(individual_digits=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Metaspace(replacement="▁", prepend_scheme="first")]
    )
    train(tokenizer, 300, [])
    file = json.loads(tokenizer.to_str())
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.add_tokens(
        [AddedToken("ﬁn", normalized=True), AddedToken("[X]", normalized=True, single_word=True)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return tokenizer, {"bos_token": None, "eos_token": "</s>"}


def save(name, tokenizer, config):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    file = json.loads(tokenizer.to_str())
    if name == "metaspace_like":  # the older way to write merges
        file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, indent=None) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=pathlib.Path, default=ROOT.parent / "shared")
    shared = parser.parse_args().shared
    OUT.mkdir(parents=True, exist_ok=True)
    gsm8k = {
        file: (shared / "data" / "gsm8k" / file).read_text().splitlines()
        for file in ("train.jsonl", "test.jsonl")
    }
    for name, folder in (("qwen3", "tokenizers/qwen3"), ("stories260K", "models/stories260K")):
        tokenizer = Tokenizer.from_file(str(shared / folder / "tokenizer.json"))
        fixture(name, tokenizer, gsm8k, strings=1050, questions=1000, decodes=250)
    for name, (tokenizer, config) in (
        ("llama3_like", llama3_like()),
        ("metaspace_like", metaspace_like()),
    ):
        save(name, tokenizer, config)
        fixture(name, tokenizer, gsm8k, strings=450, questions=0, decodes=100)


if __name__ == "__main__":
    main()
