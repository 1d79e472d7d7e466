//! How text is cut into words before byte-level merging, by the name that GGUF files give it.
//!
//! The expressions are those that the models were trained with (their own `tokenizer.json`); a merge never crosses a cut,
//! so a wrong one gives other tokens than the model knows. A new name is one row here and one golden in the tests.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

use crate::TextError;

/// One way of cutting text.
pub(crate) struct Pre {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Text is brought to Unicode form C first.
    pub nfc: bool,
    /// A whole word that is a token is that token, whatever the merges would make of it.
    pub whole_words: bool,
    /// The sequence starts with its start token where the file does not say.
    pub add_bos: bool,
}

enum Step {
    /// Every numeric character alone.
    Digits,
    /// Matches and what lies between them.
    Split(&'static str),
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PLAIN: Pre = Pre { names: &[], steps: &[], nfc: false, whole_words: false, add_bos: false };

static KNOWN: [Pre; 6] = [
    Pre { names: &["gpt-2", "phi-2"], steps: &[Step::Split(GPT2)], ..PLAIN },
    Pre { names: &["smollm", "starcoder", "refact"], steps: &[Step::Digits, Step::Split(GPT2)], ..PLAIN },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3"],
        steps: &[Step::Split(LLAMA3)],
        whole_words: true,
        add_bos: true,
        ..PLAIN
    },
    Pre { names: &["qwen2", "deepseek-r1-qwen"], steps: &[Step::Split(QWEN2)], nfc: true, ..PLAIN },
    Pre { names: &["qwen35"], steps: &[Step::Split(QWEN35)], nfc: true, ..PLAIN },
    // What GGUF readers do for files that say only `default`: punctuation apart, then words, then digits by three.
    Pre {
        names: &["default"],
        steps: &[
            Step::Split(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Split(GPT2),
            Step::Split(r"\p{N}+"),
            Step::Split(r"[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
];

impl Pre {
    /// The way of cutting that a GGUF file calls `name`.
    pub fn named(name: Option<&str>) -> Result<&'static Pre, TextError> {
        let names = || KNOWN.iter().flat_map(|p| p.names).copied().collect::<Vec<_>>().join(", ");
        let Some(name) = name else { return Err(TextError::MissingPre { known: names() }) };
        KNOWN
            .iter()
            .find(|p| p.names.contains(&name))
            .ok_or_else(|| TextError::UnknownPre { found: name.to_owned(), known: names() })
    }

    /// The pre-tokenizer: the cuts, then bytes as printable characters.
    pub fn build(&self) -> Result<PreTokenizerWrapper, TextError> {
        let mut steps = Vec::with_capacity(self.steps.len() + 1);
        for step in self.steps {
            steps.push(match step {
                Step::Digits => Digits::new(true).into(),
                Step::Split(pattern) => Split::new(
                    SplitPattern::Regex((*pattern).to_owned()),
                    SplitDelimiterBehavior::Isolated,
                    false,
                )
                .map_err(|e| TextError::TokenizerJson { message: format!("pre-tokenizer {pattern}: {e}") })?
                .into(),
            });
        }
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Sequence::new(steps).into())
    }
}
