//! Tools as gpt-oss reads them: JSON schemas as TypeScript, as its template writes them and as
//! the cookbook does.

use super::super::json::{Json, Style};

fn text<'a>(schema: &'a Json, key: &str) -> &'a str {
    schema.get(key).and_then(Json::as_str).unwrap_or_default()
}

fn is_required(schema: &Json, name: &str) -> bool {
    let required = schema
        .get("required")
        .and_then(Json::as_array)
        .unwrap_or_default();
    required.iter().any(|known| known.as_str() == Some(name))
}

fn properties(schema: &Json) -> &[(String, Json)] {
    schema
        .get("properties")
        .and_then(Json::as_object)
        .unwrap_or_default()
}

/// As the model's own chat template writes them, with its odd line breaks.
pub(super) fn template_functions(tools: &[Json]) -> String {
    let each = tools.iter().map(|tool| {
        let parameters = tool.get("parameters").unwrap_or(&Json::Null);
        let mut out = format!(
            "// {}\ntype {} = ",
            text(tool, "description"),
            text(tool, "name")
        );
        if properties(parameters).is_empty() {
            return out + "() => any;";
        }
        out += "(_: {\n";
        for (name, schema) in properties(parameters) {
            let about = text(schema, "description");
            if !about.is_empty() {
                out += &format!("// {about}\n");
            }
            let mark = if is_required(parameters, name) {
                ""
            } else {
                "?"
            };
            out += &format!("{name}{mark}: {}", template_type(schema));
            if let Some(default) = schema.get("default") {
                out += &match (schema.get("enum"), schema.get("oneOf")) {
                    (Some(_), _) => format!(", // default: {}", default.to_python_text()),
                    (_, Some(_)) => format!("// default: {}", default.to_python_text()),
                    _ => format!(", // default: {}", default.dump(Style::PLAIN)),
                };
            }
            out += ",\n";
        }
        out + "}) => any;"
    });
    each.collect::<Vec<_>>().join("\n\n")
}

fn template_type(schema: &Json) -> String {
    let nullable = match schema.get("nullable").is_some_and(Json::is_truthy) {
        true => " | null",
        false => "",
    };
    match schema.get("type") {
        Some(Json::String(kind)) => match kind.as_str() {
            "array" => return template_array(schema) + nullable,
            "string" => {
                return match schema.get("enum").and_then(Json::as_array) {
                    Some(values) if !values.is_empty() => {
                        let values = values.iter().map(Json::to_python_text);
                        format!("\"{}\"", values.collect::<Vec<_>>().join("\" | \""))
                    }
                    _ => format!("string{nullable}"),
                };
            }
            "number" | "integer" if schema.get("oneOf").is_none() => return "number".to_owned(),
            "boolean" if schema.get("oneOf").is_none() => return "boolean".to_owned(),
            "object" if schema.get("oneOf").is_none() => return template_object(schema),
            _ => {}
        },
        Some(Json::Array(kinds)) if !kinds.is_empty() => {
            let kinds = kinds.iter().map(Json::to_python_text);
            return kinds.collect::<Vec<_>>().join(" | ");
        }
        _ => {}
    }
    match schema.get("oneOf").and_then(Json::as_array) {
        Some(variants) if !variants.is_empty() => template_union(variants),
        _ => "any".to_owned(),
    }
}

fn template_array(schema: &Json) -> String {
    let Some(items) = schema.get("items").filter(|items| items.is_truthy()) else {
        return "any[]".to_owned();
    };
    match text(items, "type") {
        kind @ ("string" | "number" | "boolean") => format!("{kind}[]"),
        "integer" => "number[]".to_owned(),
        _ => {
            let inner = template_type(items);
            match inner == "object | object" || inner.chars().count() > 50 {
                true => "any[]".to_owned(),
                false => format!("{inner}[]"),
            }
        }
    }
}

fn template_object(schema: &Json) -> String {
    if properties(schema).is_empty() {
        return "object".to_owned();
    }
    let fields = properties(schema).iter().map(|(name, field)| {
        let mark = if is_required(schema, name) { "" } else { "?" };
        format!("{name}{mark}: \n                {}", template_type(field))
    });
    format!("{{\n{}}}", fields.collect::<Vec<_>>().join(", "))
}

fn template_union(variants: &[Json]) -> String {
    let objects = variants
        .iter()
        .any(|variant| text(variant, "type") == "object");
    if objects && variants.len() > 1 {
        return "any".to_owned();
    }
    let each = variants.iter().map(|variant| {
        let about = text(variant, "description");
        let about = match about.is_empty() {
            true => String::new(),
            false => format!("// {about}"),
        };
        let default = match variant.get("default") {
            Some(value) => format!("{:20}// default: {}", "", value.dump(Style::PLAIN)),
            None => String::new(),
        };
        format!("{}{about}{default}", template_type(variant))
    });
    each.collect::<Vec<_>>().join(" | \n")
}

/// As the cookbook writes them.
pub(super) fn cookbook_functions(tools: &[Json]) -> String {
    let each = tools.iter().map(|tool| {
        let about = text(tool, "description");
        let about = match about.is_empty() {
            true => String::new(),
            false => format!("// {about}\n"),
        };
        let parameters = parameters(tool.get("parameters").unwrap_or(&Json::Null));
        format!("{about}type {} = {parameters} => any;", text(tool, "name"))
    });
    each.collect::<Vec<_>>().join("\n\n")
}

fn parameters(schema: &Json) -> String {
    if text(schema, "type") != "object" || properties(schema).is_empty() {
        return "()".to_owned();
    }
    let about = text(schema, "description");
    let mut lines = vec![match about.is_empty() {
        true => "(_:".to_owned(),
        false => format!("(_: // {about}"),
    }];
    lines.push("{".to_owned());
    for (name, field) in properties(schema) {
        lines.extend(
            comments(field)
                .into_iter()
                .map(|comment| format!("// {comment}")),
        );
        let mark = if is_required(schema, name) { "" } else { "?" };
        let default = field
            .get("default")
            .map(|d| format!(" // default: {}", d.dump(Style::ASCII)));
        let default = default.unwrap_or_default();
        lines.push(format!("{name}{mark}: {},{default}", kind(field)));
    }
    lines.push("})".to_owned());
    lines.join("\n")
}

fn comments(schema: &Json) -> Vec<String> {
    let mut comments = Vec::new();
    if let Some(title) = schema.get("title").filter(|title| title.is_truthy()) {
        comments.extend([title.to_python_text(), String::new()]);
    }
    if let Some(about) = schema.get("description").filter(|about| about.is_truthy()) {
        comments.push(about.to_python_text());
    }
    if let Some(examples) = schema.get("examples").and_then(Json::as_array)
        && !examples.is_empty()
    {
        comments.push("Examples:".to_owned());
        comments.extend(
            examples
                .iter()
                .map(|e| format!("- {}", e.dump(Style::ASCII))),
        );
    }
    comments
}

fn kind(schema: &Json) -> String {
    for key in ["oneOf", "anyOf"] {
        if let Some(variants) = schema.get(key).and_then(Json::as_array) {
            return variants.iter().map(kind).collect::<Vec<_>>().join(" | ");
        }
    }
    let base = match schema.get("type") {
        Some(Json::Array(kinds)) => {
            let each = kinds
                .iter()
                .map(|name| kind(&Json::Object(vec![("type".to_owned(), name.clone())])));
            return each.collect::<Vec<_>>().join(" | ");
        }
        Some(Json::String(name)) => match name.as_str() {
            "string" => {
                if let Some(values) = schema.get("enum").and_then(Json::as_array) {
                    let values = values.iter().map(|value| value.dump(Style::ASCII));
                    return values.collect::<Vec<_>>().join(" | ");
                }
                "string".to_owned()
            }
            "number" | "integer" => "number".to_owned(),
            "boolean" => "boolean".to_owned(),
            "array" => {
                let items = schema.get("items").unwrap_or(&Json::Null);
                format!("{}[]", kind(items))
            }
            "object" => {
                let fields = properties(schema).iter().map(|(name, field)| {
                    let mark = if is_required(schema, name) { "" } else { "?" };
                    format!("{name}{mark}: {}", kind(field))
                });
                format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
            }
            _ => "any".to_owned(),
        },
        _ => "any".to_owned(),
    };
    match schema.get("nullable").is_some_and(Json::is_truthy) {
        true => format!("{base} | null"),
        false => base,
    }
}
