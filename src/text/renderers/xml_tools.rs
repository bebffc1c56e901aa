//! Tools as Qwen3.5 and Nemotron write them: calls as XML, one tag per argument.

use super::super::json::{Json, Style, set};
use super::super::message::{ToolCall, UnparsedToolCall};
use super::super::space::Strip;
use super::reply::value_or_text;
use crate::error::Result;

/// How arguments that are neither texts, lists nor objects are spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalars {
    /// `True`, `None`
    Python,
    /// `true`, `null`
    Json,
}

/// `nested` is how lists and objects are written.
pub(super) fn format_call(call: &ToolCall, scalars: Scalars, nested: Style) -> Result<String> {
    let arguments = call.parse_arguments()?;
    let mut out = format!("<tool_call>\n<function={}>\n", call.name);
    for (name, value) in arguments.as_object().unwrap_or_default() {
        let value = match (value, scalars) {
            (Json::String(text), _) => text.clone(),
            (Json::Array(_) | Json::Object(_), _) | (_, Scalars::Json) => value.dump(nested),
            (scalar, Scalars::Python) => scalar.to_python_text(),
        };
        out += &format!("<parameter={name}>\n{value}\n</parameter>\n");
    }
    Ok(out + "</function>\n</tool_call>")
}

/// Reads a block from `<tool_call>` to `</tool_call>`.
pub(super) fn parse_call(block: &str) -> std::result::Result<ToolCall, UnparsedToolCall> {
    let fail = |error: &str| UnparsedToolCall {
        raw_text: block.to_owned(),
        error: error.to_owned(),
    };
    let (name, body) = function(block).ok_or_else(|| fail("Malformed Qwen3.5 tool call XML"))?;
    if name.is_empty() {
        return Err(fail("Missing function name"));
    }
    let mut arguments = Vec::new();
    let mut rest = body;
    while let Some((before, name, value, after)) = parameter(rest) {
        if !before.strip().is_empty() {
            return Err(fail(
                "Unexpected non-parameter content inside <function> block",
            ));
        }
        if name.strip().is_empty() {
            return Err(fail("Empty parameter name"));
        }
        let value = value_or_text(value.strip().trim_matches('\n'));
        set(&mut arguments, name.strip().to_owned(), value);
        rest = after;
    }
    if !rest.strip().is_empty() {
        return Err(fail("Unexpected trailing content inside <function> block"));
    }
    let arguments = Json::Object(arguments).dump(Style::ASCII);
    Ok(ToolCall::new(name, arguments))
}

/// Name and body of `<tool_call><function=name>body</function></tool_call>`.
fn function(block: &str) -> Option<(&str, &str)> {
    let inner = block.strip().strip_prefix("<tool_call>")?.lstrip();
    let inner = inner.strip_prefix("<function=")?;
    let (name, inner) = inner.split_once('>')?;
    if name.is_empty() || name.contains('\n') {
        return None;
    }
    let inner = inner.strip_suffix("</tool_call>")?.rstrip();
    Some((name.strip(), inner.strip_suffix("</function>")?.strip()))
}

/// The first whole parameter: what is before it, its name, its value, what is after it.
fn parameter(text: &str) -> Option<(&str, &str, &str, &str)> {
    const OPEN: &str = "<parameter=";
    const CLOSE: &str = "</parameter>";
    let mut from = 0;
    loop {
        let start = from + text[from..].find(OPEN)?;
        from = start + OPEN.len();
        let (name, rest) = text[from..].split_once('>')?;
        if name.is_empty() || name.contains('\n') {
            continue;
        }
        let (value, after) = rest.split_once(CLOSE)?;
        return Some((&text[..start], name, value, after));
    }
}

/// The block that tells the model which functions there are, each declared on lines of its own.
pub(super) fn declaration(functions: &str) -> String {
    format!(
        "# Tools\n\nYou have access to the following functions:\n\n<tools>\n{functions}\n</tools>\
         \n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\
         \n\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n\
         value_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second \
         parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n\
         <IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner \
         <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n\
         - Required parameters MUST be specified\n- You may provide optional reasoning for your \
         function call in natural language BEFORE the function call, but NOT after\n- If there is \
         no function call available, answer the question like normal with your current knowledge \
         and do not tell the user about function calls\n</IMPORTANT>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_or_explained() {
        #[track_caller]
        fn check(inner: &str, expected: std::result::Result<&str, &str>) {
            let got = parse_call(&format!("<tool_call>\n{inner}\n</tool_call>"));
            let got = got.map(|call| format!("{} {}", call.name, call.arguments));
            assert_eq!(got.as_deref().map_err(|e| e.error.as_str()), expected);
        }
        check(
            "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n</parameter>\n\
             </function>",
            Ok(r#"f {"a": 1, "b": "x\ny"}"#),
        );
        check("<function=f>\n</function>", Ok("f {}"));
        check(
            "\u{1f}<function=f>\u{1c}<parameter=a>\u{1d}x\u{1e}</parameter>\u{85}</function>\u{1f}",
            Ok(r#"f {"a": "x"}"#),
        );
        check("f", Err("Malformed Qwen3.5 tool call XML"));
        check(
            "<function=f>\nx<parameter=a>1</parameter></function>",
            Err("Unexpected non-parameter content inside <function> block"),
        );
        check(
            "<function=f>\n<parameter=a>1</parameter>x</function>",
            Err("Unexpected trailing content inside <function> block"),
        );
    }
}
