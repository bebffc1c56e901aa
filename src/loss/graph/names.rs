//! The service's rules for names, and the operations' names in PyTorch.

use super::super::expr::{Binary, Compare, Unary};
use crate::error::{Error, Result};

/// How many inputs a loss may read, logprobs included.
pub(super) const MAX_INPUTS: usize = 16;

/// The key a metric is reported under: `custom/<name>:sum` or `custom/<name>:mean`.
///
/// # Errors
///
/// If the name breaks the service's rule.
pub(in super::super) fn metric_key(name: &str) -> Result<String> {
    let bare = name.strip_prefix("custom/").unwrap_or(name);
    let valid = |stem: &str| {
        (1..=64).contains(&stem.len())
            && stem
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'/' | b'-'))
    };
    match bare.rsplit_once(':') {
        Some((stem, "sum" | "mean")) if valid(stem) => Ok(format!("custom/{bare}")),
        _ => Err(Error::invalid(
            "metric",
            format!(
                "{name:?} must be up to 64 lower-case letters, digits or _./- and end in :sum or :mean"
            ),
        )),
    }
}

impl Unary {
    /// The function PyTorch's tracer records.
    pub(super) fn target(self) -> &'static str {
        match self {
            Self::Neg => "operator.neg",
            Self::Exp => "torch.exp",
            Self::Log => "torch.log",
            Self::Sqrt => "torch.sqrt",
            Self::Abs => "torch.abs",
            Self::Sigmoid => "torch.sigmoid",
            Self::LogSigmoid => "torch._C._nn.log_sigmoid",
            Self::Softplus => "torch._C._nn.softplus",
            Self::Tanh => "torch.tanh",
            Self::Relu => "torch.relu",
        }
    }

    /// The operation behind a bare function or method name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "neg" | "negative" => Self::Neg,
            "exp" => Self::Exp,
            "log" => Self::Log,
            "sqrt" => Self::Sqrt,
            "abs" | "absolute" => Self::Abs,
            "sigmoid" | "expit" => Self::Sigmoid,
            "log_sigmoid" | "logsigmoid" => Self::LogSigmoid,
            "softplus" => Self::Softplus,
            "tanh" => Self::Tanh,
            "relu" => Self::Relu,
            _ => return None,
        })
    }
}

impl Binary {
    pub(super) fn target(self) -> &'static str {
        match self {
            Self::Add => "operator.add",
            Self::Sub => "operator.sub",
            Self::Mul => "operator.mul",
            Self::Div => "operator.truediv",
            Self::Pow => "operator.pow",
            Self::Min => "torch.minimum",
            Self::Max => "torch.maximum",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "add" => Self::Add,
            "sub" | "subtract" => Self::Sub,
            "mul" | "multiply" => Self::Mul,
            "truediv" | "div" | "divide" | "true_divide" => Self::Div,
            "pow" => Self::Pow,
            "minimum" | "min" => Self::Min,
            "maximum" | "max" => Self::Max,
            _ => return None,
        })
    }
}

impl Compare {
    pub(super) fn target(self) -> &'static str {
        match self {
            Self::Gt => "operator.gt",
            Self::Ge => "operator.ge",
            Self::Lt => "operator.lt",
            Self::Le => "operator.le",
            Self::Eq => "operator.eq",
            Self::Ne => "operator.ne",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "gt" | "greater" => Self::Gt,
            "ge" | "greater_equal" => Self::Ge,
            "lt" | "less" => Self::Lt,
            "le" | "less_equal" => Self::Le,
            "eq" => Self::Eq,
            "ne" | "not_equal" => Self::Ne,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names() {
        #[track_caller]
        fn check(name: &str, expected: Option<&str>) {
            assert_eq!(metric_key(name).ok().as_deref(), expected);
        }
        check("kl:mean", Some("custom/kl:mean"));
        check("custom/kl:sum", Some("custom/kl:sum"));
        check("a/b.c-d_1:sum", Some("custom/a/b.c-d_1:sum"));
        check("kl", None);
        check("kl:max", None);
        check(":sum", None);
        check("Kl:sum", None);
        check("a:b:sum", None);
        check(
            &format!("{}:sum", "a".repeat(64)),
            Some(&format!("custom/{}:sum", "a".repeat(64))),
        );
        check(&format!("{}:sum", "a".repeat(65)), None);
    }
}
