//! Tools as Kimi K2.5 reads them: JSON schemas written as TypeScript types.

use super::super::json::{Json, Style};
use crate::error::{Error, Result};

const INDENT: &str = "  ";

/// The declaration of all tools.
pub(super) fn typescript(tools: &[Json]) -> Result<String> {
    let functions = tools.iter().map(function).collect::<Result<Vec<_>>>()?;
    Ok(format!(
        "# Tools\n\n## functions\nnamespace functions {{\n{}\n}}\n",
        functions.join("\n")
    ))
}

fn function(tool: &Json) -> Result<String> {
    let name = tool
        .get("name")
        .and_then(Json::as_str)
        .unwrap_or("function");
    let empty = Json::Object(Vec::new());
    let parameters = tool
        .get("parameters")
        .filter(|p| p.is_truthy())
        .unwrap_or(&empty);
    let definitions = parameters
        .get("$defs")
        .and_then(Json::as_object)
        .unwrap_or_default();
    let schema = Schema {
        definitions,
        own: std::cell::Cell::new(false),
    };
    let whole = schema.object(parameters, "")?;
    let mut lines = Vec::new();
    if schema.own.get() {
        let fields = schema.fields(parameters, INDENT, false)?;
        let fields = match fields.is_empty() {
            true => String::new(),
            false => format!("\n{}\n", fields.join(",\n")),
        };
        lines.push(format!("interface parameters {{{fields}}}"));
    }
    for (name, definition) in definitions {
        let about = description(definition);
        let about = match about.is_empty() {
            true => String::new(),
            false => comment(about, "") + "\n",
        };
        lines.push(format!(
            "{about}interface {name} {}",
            schema.kind(definition, "")?
        ));
    }
    let about = description(tool);
    if !about.is_empty() {
        lines.push(comment(about, ""));
    }
    let whole = if schema.own.get() {
        "parameters"
    } else {
        &whole
    };
    lines.push(format!("type {name} = (_: {whole}) => any;"));
    Ok(lines.join("\n"))
}

struct Schema<'a> {
    definitions: &'a [(String, Json)],
    /// The schema refers to itself.
    own: std::cell::Cell<bool>,
}

impl Schema<'_> {
    /// A schema as a type.
    fn kind(&self, schema: &Json, indent: &str) -> Result<String> {
        if let Json::Bool(any) = schema {
            return Ok(if *any { "any" } else { "null" }.to_owned());
        }
        if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
            return self.reference(reference);
        }
        if let Some(types) = schema.get("anyOf").and_then(Json::as_array) {
            let types = types.iter().map(|kind| self.kind(kind, indent));
            return Ok(types.collect::<Result<Vec<_>>>()?.join(" | "));
        }
        if let Some(values) = schema.get("enum").and_then(Json::as_array) {
            let value = |value: &Json| match value {
                Json::String(text) => format!("\"{text}\""),
                other => other.to_python_text(),
            };
            return Ok(values.iter().map(value).collect::<Vec<_>>().join(" | "));
        }
        match schema.get("type") {
            Some(Json::Array(kinds)) => union(kinds),
            Some(Json::String(kind)) => match kind.as_str() {
                "object" => self.object(schema, indent),
                "array" => self.array(schema, indent),
                "integer" => Ok("number".to_owned()),
                other => Ok(other.to_owned()),
            },
            None if schema.as_object().is_some_and(<[_]>::is_empty) => Ok("any".to_owned()),
            _ => Err(invalid(&format!("{schema} is no JSON schema"))),
        }
    }

    fn reference(&self, reference: &str) -> Result<String> {
        if reference == "#" {
            self.own.set(true);
            return Ok("parameters".to_owned());
        }
        let name = reference.strip_prefix("#/$defs/");
        let name = name.filter(|name| self.definitions.iter().any(|(known, _)| known == name));
        name.map(str::to_owned)
            .ok_or_else(|| invalid(&format!("there is no {reference}")))
    }

    fn object(&self, schema: &Json, indent: &str) -> Result<String> {
        let deeper = format!("{indent}{INDENT}");
        let mut fields = self.fields(schema, &deeper, true)?;
        match schema.get("additionalProperties") {
            None | Some(Json::Null) => {}
            Some(Json::Bool(true)) => fields.push(format!("{deeper}[k: string]: any")),
            Some(Json::Bool(false)) => fields.push(format!("{deeper}[k: string]: never")),
            Some(kind) => {
                fields.push(format!(
                    "{deeper}[k: string]: {}",
                    self.kind(kind, &deeper)?
                ));
            }
        }
        Ok(match fields.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{\n{}\n{indent}}}", fields.join(",\n")),
        })
    }

    /// Fields with their comments; sorted by name, those required first.
    fn fields(&self, schema: &Json, indent: &str, sort: bool) -> Result<Vec<String>> {
        let required = schema
            .get("required")
            .and_then(Json::as_array)
            .unwrap_or_default();
        let is_optional = |name: &str| !required.iter().any(|known| known.as_str() == Some(name));
        let properties = schema.get("properties").and_then(Json::as_object);
        let mut properties: Vec<&(String, Json)> = properties.unwrap_or_default().iter().collect();
        if sort {
            properties.sort_by_key(|(name, _)| (is_optional(name), name));
        }
        let mut fields = Vec::new();
        for (name, field) in properties {
            let mut text = docs(field, indent);
            if let Some(default) = field.get("default").filter(|d| **d != Json::Null) {
                let default = match default {
                    Json::Bool(_) => default.to_python_text(),
                    other => other.dump(Style::PLAIN),
                };
                text += &format!("{indent}// Default: {default}\n");
            }
            let mark = if is_optional(name) { "?" } else { "" };
            text += &format!("{indent}{name}{mark}: {}", self.kind(field, indent)?);
            fields.push(text);
        }
        Ok(fields)
    }

    fn array(&self, schema: &Json, indent: &str) -> Result<String> {
        let Some(items) = schema.get("items").filter(|items| items.is_truthy()) else {
            return Ok("Array<any>".to_owned());
        };
        let deeper = format!("{indent}{INDENT}");
        let docs = docs(items, &deeper);
        Ok(match docs.is_empty() {
            true => format!("Array<{}>", self.kind(items, indent)?),
            false => {
                let kind = self.kind(items, &deeper)?;
                format!("Array<\n{docs}{deeper}{kind}\n{indent}>")
            }
        })
    }
}

fn invalid(problem: &str) -> Error {
    Error::invalid("tools", problem)
}

fn union(kinds: &[Json]) -> Result<String> {
    let kind = |kind: &Json| match kind.as_str() {
        Some("integer") => Ok("number"),
        Some("object") => Ok("{}"),
        Some("array") => Ok("Array<any>"),
        Some("string") => Ok("string"),
        Some("number") => Ok("number"),
        Some("boolean") => Ok("boolean"),
        Some("null") => Ok("null"),
        _ => Err(invalid(&format!("{kind} is no type"))),
    };
    Ok(kinds
        .iter()
        .map(kind)
        .collect::<Result<Vec<_>>>()?
        .join(" | "))
}

fn description(schema: &Json) -> &str {
    schema
        .get("description")
        .and_then(Json::as_str)
        .unwrap_or_default()
}

fn comment(text: &str, indent: &str) -> String {
    let line = |line: &str| match line.is_empty() {
        true => String::new(),
        false => format!("{indent}// {line}"),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Description and constraints as comments.
fn docs(schema: &Json, indent: &str) -> String {
    let mut out = String::new();
    let about = description(schema);
    if !about.is_empty() {
        out += &format!("{}\n", comment(about, indent));
    }
    // References, unions and choices have no constraints of their own.
    let plain = ["$ref", "anyOf", "enum"]
        .iter()
        .all(|key| schema.get(key).is_none());
    let known: &[&str] = match schema.get("type").and_then(Json::as_str) {
        Some("string") if plain => &["maxLength", "minLength", "pattern"],
        Some("number" | "integer") if plain => &["maximum", "minimum"],
        Some("array") if plain => &["maxItems", "minItems"],
        _ => &[],
    };
    let constraints = known
        .iter()
        .filter_map(|key| Some(format!("{key}: {}", schema.get(key)?.to_python_text())));
    let constraints = constraints.collect::<Vec<_>>().join(", ");
    if !constraints.is_empty() {
        out += &format!("{indent}// {constraints}\n");
    }
    out
}
