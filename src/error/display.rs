//! How an error is shown: to users, and to whoever debugs.

use std::fmt;

use super::{Effect, Error};

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = match self {
            Self::Invalid(invalid) => {
                return write!(f, "invalid {}: {}", invalid.field, invalid.problem);
            }
            Self::Config(_) => "configuration",
            Self::Credentials(_) => "credentials",
            Self::Status(_) => "service answered with an error",
            Self::Connection(_) => "no usable answer",
            Self::Timeout(_) => "deadline passed",
            Self::Reply(_) => "unexpected answer",
            Self::Failed(_) => "request failed",
            Self::Lost(_) => "lost by the service",
            Self::Broken(_) => "training client is broken, restore from a checkpoint",
            Self::Closed(_) => "client is closed",
            Self::Cancelled(_) => "cancelled",
            Self::NotSent(_) => "not sent",
            Self::Io(_) => "file error",
            Self::Callback(_) => "your function failed",
            Self::Internal(_) => "internal error",
        };
        let context = self.context().expect("every other variant has a context");
        f.write_str(label)?;
        if !context.message.is_empty() {
            write!(f, ": {}", context.message)?;
        }
        let mut details = Vec::new();
        if let Some(status) = context.status {
            details.push(format!("status {status}"));
        }
        if let Some(request) = &context.request {
            details.push(request.clone());
        }
        if let Some(id) = &context.request_id {
            details.push(format!("request {id}"));
        }
        if let Some(category) = context.category {
            details.push(format!("category {category}"));
        }
        match context.effect {
            Effect::None => {}
            Effect::Unknown => details.push("may have taken effect".to_owned()),
            Effect::Accepted => details.push("accepted by the service".to_owned()),
        }
        if !details.is_empty() {
            write!(f, " ({})", details.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Invalid(invalid) => return fmt::Debug::fmt(invalid, f),
            Self::Config(_) => "Config",
            Self::Credentials(_) => "Credentials",
            Self::Status(_) => "Status",
            Self::Connection(_) => "Connection",
            Self::Timeout(_) => "Timeout",
            Self::Reply(_) => "Reply",
            Self::Failed(_) => "Failed",
            Self::Lost(_) => "Lost",
            Self::Broken(_) => "Broken",
            Self::Closed(_) => "Closed",
            Self::Cancelled(_) => "Cancelled",
            Self::NotSent(_) => "NotSent",
            Self::Io(_) => "Io",
            Self::Callback(_) => "Callback",
            Self::Internal(_) => "Internal",
        };
        f.debug_tuple(name).field(&self.context()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Context;

    #[test]
    fn display_names_request_status_and_id() {
        let error = Error::Status(Box::new(Context {
            message: "no such model".into(),
            request: Some("POST get_info".into()),
            request_id: Some("r7".into()),
            status: Some(404),
            ..Context::default()
        }));
        assert_eq!(
            error.to_string(),
            "service answered with an error: no such model (status 404, POST get_info, request r7)"
        );
    }
}
