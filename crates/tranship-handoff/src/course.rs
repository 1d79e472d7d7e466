//! The course of a hand-off's frames: one that is all of it, or an opening, a frame for each layer, and a close.

use crate::frame::{Entry, Header};
use crate::handoff::{Content, Manifest, Seal};
use crate::{HandoffError, HandoffTensor};
use std::collections::HashMap;

/// The key of a frame's metadata that says which frame of a stream it is. The file form has none.
pub(crate) const FRAME: &str = "frame";

/// What has come of a hand-off so far.
pub(crate) struct Course {
    pub manifest: Manifest,
    /// The manifest's line, as it is sealed.
    pub line: String,
    content: Content,
    form: Form,
    seal: Option<String>,
    /// Places and layers of the listed tensors, by name.
    listed: HashMap<String, (usize, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    File,
    Stream { layer: Option<u64>, closed: bool },
}

fn fault(what: impl Into<String>) -> HandoffError {
    HandoffError::Format(what.into())
}

impl Course {
    /// Starts with the first frame. The tensors of a file are put in their order.
    ///
    /// # Errors
    /// [`HandoffError::Format`] or [`HandoffError::Version`].
    pub fn open(header: &mut Header) -> Result<Course, HandoffError> {
        let form = match header.metadata.get(FRAME).map(String::as_str) {
            None => Form::File,
            Some("open") if header.entries.is_empty() => Form::Stream { layer: None, closed: false },
            Some("open") => return Err(fault("the frame that opens it has tensors")),
            Some(other) => return Err(fault(format!("it begins with a frame `{other}`"))),
        };
        let line = header.metadata.get("tranship").ok_or_else(|| fault("its metadata has no `tranship`"))?;
        let manifest = Manifest::from_line(line)?;
        let (line, seal) = (line.clone(), header.metadata.get("seal").cloned());
        let carried = manifest.contract.carried.iter().enumerate();
        let listed = carried.map(|(at, c)| (c.name.clone(), (at, c.layer))).collect();
        let course = Course { manifest, line, content: Content::default(), form, seal, listed };
        if form == Form::File {
            course.order(header);
        } else if course.manifest.next_token.is_some() {
            return Err(fault("the frame that opens it names the next token, which its close is to name"));
        }
        Ok(course)
    }

    /// Goes on with the next frame: that of a layer, above the one before it, or the close.
    ///
    /// # Errors
    /// [`HandoffError::Format`] or [`HandoffError::Version`].
    pub fn follow(&mut self, header: &mut Header) -> Result<(), HandoffError> {
        let Form::Stream { layer: before, closed: false } = self.form else {
            return Err(fault("a frame follows the last one"));
        };
        match header.metadata.get(FRAME).map(String::as_str) {
            Some("layer") => {
                let number =
                    |text: &String| text.parse().ok().filter(|layer: &u64| layer.to_string() == *text);
                let layer = header.metadata.get("layer").and_then(number);
                let layer = layer.ok_or_else(|| fault("a frame of a layer has no `layer`"))?;
                if header.entries.is_empty() {
                    return Err(fault(format!("the frame of layer {layer} has no tensors")));
                }
                if let Some(before) = before.filter(|&before| before >= layer) {
                    return Err(fault(format!("the frame of layer {layer} follows that of layer {before}")));
                }
                let elsewhere = |e: &&Entry| self.listed.get(&e.name).is_some_and(|(_, own)| *own != layer);
                let other = header.entries.iter().find(elsewhere);
                if let Some(Entry { name, .. }) = other {
                    return Err(fault(format!(
                        "`{name}` is in the frame of layer {layer}, and listed elsewhere"
                    )));
                }
                self.form = Form::Stream { layer: Some(layer), closed: false };
                self.order(header);
                Ok(())
            }
            Some("close") => self.close(header, before),
            Some(other) => Err(fault(format!("there is a frame `{other}` in it"))),
            None => Err(fault("there is a frame in it that does not say which")),
        }
    }

    fn close(&mut self, header: &mut Header, layer: Option<u64>) -> Result<(), HandoffError> {
        if !header.entries.is_empty() {
            return Err(fault("the frame that closes it has tensors"));
        }
        let line = header.metadata.get("tranship");
        let line = line.ok_or_else(|| fault("the metadata of its close has no `tranship`"))?;
        let manifest = Manifest::from_line(line)?;
        if (Manifest { next_token: None, ..manifest.clone() }) != self.manifest {
            return Err(fault("the manifests of its opening and its close differ"));
        }
        (self.line, self.manifest) = (line.clone(), manifest);
        self.seal = header.metadata.get("seal").cloned();
        self.form = Form::Stream { layer, closed: true };
        Ok(())
    }

    fn order(&self, header: &mut Header) {
        header.order(|name| self.listed.get(name).map(|(at, _)| *at));
    }

    /// Adds a tensor whose bytes have come.
    pub fn add(&mut self, tensor: &HandoffTensor) {
        self.content.add(&tensor.name, tensor.dtype, &tensor.shape, tensor.examined().digest);
    }

    /// Whether no other frame is to come.
    pub fn ended(&self) -> bool {
        matches!(self.form, Form::File | Form::Stream { closed: true, .. })
    }

    /// Whether it is the file form, after which nothing may come at all.
    pub fn is_file(&self) -> bool {
        self.form == Form::File
    }

    /// That the input ends here, where more is to come.
    pub fn early(&self) -> HandoffError {
        HandoffError::Ends(match self.form {
            Form::Stream { layer: Some(layer), .. } => format!("after layer {layer}, before it is closed"),
            _ => "before its first layer".into(),
        })
    }

    /// What the seal is found to be, when every tensor has come.
    pub fn seal(&mut self) -> Seal {
        let content = std::mem::take(&mut self.content).digest(&self.line);
        match &self.seal {
            None => Seal::Absent,
            Some(found) if *found == content => Seal::Whole(content),
            Some(found) => Seal::Broken { content, found: found.clone() },
        }
    }
}
