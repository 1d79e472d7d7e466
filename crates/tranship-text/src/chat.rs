//! A conversation to token ids, so that nothing a message says can act as a control token.
//!
//! A template mixes its own control tokens with the messages' words in one text. Where a message spells a control token, a
//! mark that occurs nowhere else is put inside the spelling before rendering; the rendered text is then cut at the control
//! tokens that are left, which are the template's, and what lies between is encoded as plain text without the marks.

use crate::{ChatTemplate, Message, RenderOptions, Specials, TextError, Tokenizer};

/// Private use: no writing has these characters, and a message that does gets the next one.
const MARKS: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

impl Tokenizer {
    /// The ids of a conversation in a template, with the template's control tokens as themselves and those that a message
    /// spells as text. Where no message spells one, this is [`Tokenizer::encode_template`] of the rendered text.
    ///
    /// `options.extra` is taken as it is: what tools and documents spell is the caller's.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode_text`].
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>, TextError> {
        let controls = self.controls();
        let unused =
            |mark: &char| messages.iter().all(|m| !m.content.contains(*mark) && !m.role.contains(*mark));
        let Some(mark) = MARKS.into_iter().find(unused) else {
            let bytes = messages.iter().map(|m| m.content.len()).sum();
            return Err(TextError::Encode {
                bytes,
                message: "every character of private use occurs in it".into(),
            });
        };
        let marked: Vec<Message> = messages
            .iter()
            .map(|m| Message::new(marked(&m.role, &controls, mark), marked(&m.content, &controls, mark)))
            .collect();
        let text = template.render(&marked, options)?;
        if !text.contains(mark) {
            return self.encode_template(&text, Specials::None);
        }
        let mut ids = Vec::new();
        let (mut from, mut at) = (0, 0);
        while at < text.len() {
            match control_at(&text[at..], &controls) {
                Some((spelling, id)) => {
                    ids.extend(self.encode_text(&text[from..at].replace(mark, ""), Specials::None)?);
                    ids.push(*id);
                    at += spelling.len();
                    from = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        ids.extend(self.encode_text(&text[from..].replace(mark, ""), Specials::None)?);
        Ok(ids)
    }

    /// The spellings of the control tokens, longest first.
    fn controls(&self) -> Vec<(String, u32)> {
        let ids = (0u32..).take(self.vocab_size()).filter(|id| self.is_control(*id));
        let mut controls: Vec<(String, u32)> = ids
            .filter_map(|id| Some((self.token_text(id)?, id)))
            .filter(|(text, _)| !text.is_empty())
            .collect();
        controls.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        controls
    }
}

fn control_at<'c>(text: &str, controls: &'c [(String, u32)]) -> Option<&'c (String, u32)> {
    controls.iter().find(|(spelling, _)| text.starts_with(spelling.as_str()))
}

/// `text` with `mark` after the first character of every spelling of a control token.
fn marked(text: &str, controls: &[(String, u32)], mark: char) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        out.push(c);
        if control_at(&text[at..], controls).is_some() {
            out.push(mark);
        }
    }
    out
}
