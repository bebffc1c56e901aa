//! Macros: parameters whose defaults come late, and calls with more than a macro names.

use std::collections::HashSet;

use super::expression::expression;
use super::scan::{code, is_name, is_text};
use super::{UNSET, VARIADIC};

/// `macro name(parameter, parameter=default)`
pub(super) struct Signature<'a> {
    name: &'a str,
    parameters: Vec<Parameter<'a>>,
}

struct Parameter<'a> {
    name: &'a str,
    /// Empty if it has none.
    default: String,
    /// The default names a parameter before this one.
    is_late: bool,
}

impl<'a> Signature<'a> {
    /// `None` for what is no macro; minijinja will say so.
    pub(super) fn read(tokens: &[&'a str]) -> Option<Self> {
        let code = code(tokens);
        let (name, rest) = match code[..] {
            ["macro", name, "(", ref rest @ .., ")"] => (name, rest),
            _ => return None,
        };
        let mut parameters: Vec<Parameter<'a>> = Vec::new();
        let mut known = HashSet::new();
        for part in split_at_commas(rest) {
            let (name, default) = match part[..] {
                [] => continue,
                [name] => (name, &[][..]),
                [name, "=", ref default @ ..] => (name, default),
                _ => return None,
            };
            parameters.push(Parameter {
                name,
                default: expression(&spaced(default)),
                is_late: default.iter().any(|token| known.contains(token)),
            });
            known.insert(name);
        }
        Some(Self { name, parameters })
    }

    /// The tag, with parameters of its own for what a macro may ask for beside those it names.
    pub(super) fn definition(&self, is_variadic: bool) -> String {
        let parameter = |parameter: &Parameter<'_>| match parameter {
            Parameter {
                name,
                is_late: true,
                ..
            } => format!("{name}={UNSET}"),
            Parameter { name, default, .. } if default.is_empty() => (*name).to_owned(),
            Parameter { name, default, .. } => format!("{name}={default}"),
        };
        let mut parameters: Vec<String> = self.parameters.iter().map(parameter).collect();
        let hidden = if is_variadic { "__" } else { "" };
        if is_variadic {
            parameters.extend(["varargs=()", "kwargs={}"].map(str::to_owned));
        }
        format!(" macro {hidden}{}({}) ", self.name, parameters.join(", "))
    }

    /// Tags, to put behind the definition, that set what it could not.
    pub(super) fn late_defaults(&self) -> Vec<String> {
        let late = self.parameters.iter().filter(|parameter| parameter.is_late);
        late.map(|Parameter { name, default, .. }| {
            format!("%}}{{% set {name} = ({default}) if {name} is undefined else {name} ")
        })
        .collect()
    }

    /// The tag, to put behind the end, that lets the macro be called with more than it names.
    pub(super) fn adapter(&self) -> String {
        let names = self.parameters.iter().map(|p| format!("'{}'", p.name));
        let names = names.collect::<Vec<_>>().join(", ");
        let name = self.name;
        format!("%}}{{% set {name} = {VARIADIC}(__{name}, [{names}]) ")
    }
}

/// The same with spaces where two tokens would become one.
fn spaced<'a>(code: &[&'a str]) -> Vec<&'a str> {
    let is_word = |token: &&str| is_text(token) || is_name(token);
    let mut spaced: Vec<&str> = Vec::new();
    for token in code {
        if spaced.last().is_some_and(is_word) && is_word(token) {
            spaced.push(" ");
        }
        spaced.push(token);
    }
    spaced
}

fn split_at_commas<'a>(tokens: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut depth = 0usize;
    let mut parts = vec![Vec::new()];
    for token in tokens {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "," if depth == 0 => {
                parts.push(Vec::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(*token);
        }
    }
    parts
}
