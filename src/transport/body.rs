//! Bodies as ureq sends them.

use std::fs::File;
use std::path::Path;

use ureq::http::HeaderValue;
use ureq::unversioned::multipart::{Form, Part as FormPart};
use ureq::{AsSendBody, SendBody};

use super::fault::{Fault, FaultKind, Phase};
use super::request::{Body, Part, Source};
use crate::wire::route::Method;

/// A body opened for one attempt.
pub(super) enum Content<'a> {
    Nothing(()),
    Bytes(&'a [u8]),
    File(File),
    #[cfg(feature = "text")]
    Slice(std::io::Take<File>),
    Form(Form<'a>),
}

impl<'a> Content<'a> {
    pub(super) fn new(method: Method, body: &Body<'a>) -> Result<Self, Fault> {
        Ok(match *body {
            // Without a length, servers and proxies may wait for a body that never comes.
            Body::Empty if matches!(method, Method::Post | Method::Put) => Self::Bytes(&[]),
            Body::Empty => Self::Nothing(()),
            Body::Json(bytes) | Body::Proto { bytes, .. } => Self::Bytes(bytes),
            Body::Raw { source, .. } => match source {
                Source::Bytes(bytes) => Self::Bytes(bytes),
                Source::File(path) => {
                    Self::File(File::open(path).map_err(|error| unreadable(path, error))?)
                }
            },
            #[cfg(feature = "text")]
            Body::Slice { path, from, length } => {
                Self::Slice(slice(path, from, length).map_err(|error| unreadable(path, error))?)
            }
            Body::Multipart(parts) => Self::Form(form(parts)?),
        })
    }

    /// What only the opened body knows: a form's boundary.
    pub(super) fn content_type(&self) -> Option<HeaderValue> {
        let Self::Form(form) = self else {
            return None;
        };
        let kind = format!("multipart/form-data; boundary={}", form.boundary());
        Some(HeaderValue::from_str(&kind).expect("a boundary is plain ASCII"))
    }

    /// How long it is, where ureq cannot tell.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            #[cfg(feature = "text")]
            Self::Slice(slice) => Some(slice.limit()),
            _ => None,
        }
    }

    pub(super) fn as_send_body(&mut self) -> SendBody<'_> {
        match self {
            Self::Nothing(unit) => unit.as_body(),
            Self::Bytes(bytes) => bytes.as_body(),
            Self::File(file) => file.as_body(),
            #[cfg(feature = "text")]
            Self::Slice(slice) => SendBody::from_reader(slice),
            Self::Form(form) => form.as_body(),
        }
    }
}

#[cfg(feature = "text")]
fn slice(path: &Path, from: u64, length: u64) -> std::io::Result<std::io::Take<File>> {
    use std::io::{Read, Seek, SeekFrom};

    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    Ok(file.take(length))
}

fn form<'a>(parts: &'a [Part<'a>]) -> Result<Form<'a>, Fault> {
    let mut form = Form::new();
    for part in parts {
        let mut field = match part.source {
            Source::Bytes(bytes) => FormPart::bytes(bytes),
            Source::File(path) => FormPart::file(path).map_err(|error| unreadable(path, error))?,
        };
        if let Some(name) = part.file_name {
            field = field.file_name(name);
        }
        if let Some(kind) = part.content_type {
            field = field
                .mime_str(kind)
                .map_err(|error| Fault::from_ureq(error, Phase::Head))?;
        }
        form = form.part(part.name, field);
    }
    Ok(form)
}

fn unreadable(path: &Path, error: std::io::Error) -> Fault {
    let message = format!("{} cannot be read", path.display());
    Fault::caused(FaultKind::File, message, error)
}
