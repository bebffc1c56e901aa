//! Filters, tests and functions of Jinja2 that `minijinja` lacks or means otherwise.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::methods::{changed_case, lines, pad, stripped};
use super::python::{Arguments, float, formatted, pairs, refusal, text_of, to_json};
use super::source::{CONCAT, ITERABLE, KEPT, MODULO, PLUS, SLICE, TIMES, VARIADIC};
use crate::text::letters::is_word;
use crate::text::space::{Strip, is_space};

/// Names `minijinja` has and Jinja2 has not: a template that uses them is refused there.
const FOREIGN: [&str; 5] = ["split", "lines", "chain", "zip", "bool"];

pub(super) fn add_to(environment: &mut Environment<'_>) {
    for name in FOREIGN {
        environment.remove_filter(name);
    }
    let filters: [(&str, Filter); 27] = [
        ("tojson", |value, arguments| {
            to_json(value, arguments).map(Value::from)
        }),
        ("string", |value, _| Ok(as_safe_as(value, text_of(value)))),
        ("safe", |value, _| {
            Ok(Value::from_safe_string(text_of(value)))
        }),
        ("trim", trim),
        ("upper", |value, _| Ok(cased(value, "upper"))),
        ("lower", |value, _| Ok(cased(value, "lower"))),
        ("capitalize", |value, _| Ok(cased(value, "capitalize"))),
        ("title", |value, _| {
            let text = minijinja::filters::title(text_of(value).into());
            Ok(Value::from(text))
        }),
        ("join", join),
        ("reverse", reverse),
        ("length", length),
        ("count", length),
        ("int", int),
        ("float", to_float),
        ("default", default),
        ("d", default),
        ("first", |value, _| end(value, false)),
        ("last", |value, _| end(value, true)),
        ("items", items),
        ("dictsort", dict_sort),
        ("replace", replace),
        ("indent", indent),
        ("truncate", truncate),
        ("wordcount", word_count),
        ("striptags", strip_tags),
        ("center", center),
        ("urlencode", url_encode),
    ];
    for (name, filter) in filters {
        let call = move |value: &Value, arguments: Rest<Value>, named: Kwargs| {
            let mut arguments = arguments.0;
            arguments.push(Value::from(named));
            filter(value, &arguments)
        };
        environment.add_filter(name, call);
    }
    environment.add_filter("forceescape", |value: &Value| escaped(&text_of(value)));
    for name in ["e", "escape"] {
        environment.add_filter(name, |value: &Value| match value.is_safe() {
            true => value.clone(),
            false => escaped(&text_of(value)),
        });
    }
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_function(MODULO, modulo);
    environment.add_function(TIMES, times);
    environment.add_function(PLUS, plus);
    environment.add_function(CONCAT, |parts: Rest<Value>| {
        parts.iter().map(text_of).collect::<String>()
    });
    environment.add_function(SLICE, slice);
    environment.add_function(ITERABLE, iterable);
    environment.add_function(KEPT, kept);
    environment.add_function(VARIADIC, |inner: Value, names: Vec<String>| {
        Value::from_object(VariadicMacro { inner, names })
    });
    environment.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.0)
    });
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("raise_exception", |message: Value| {
        Err::<Value, _>(refusal(text_of(&message)))
    });
}

type Filter = fn(&Value, &[Value]) -> Result<Value, Error>;

fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Bytes, Iterable, Map, Seq, String, Undefined};
    matches!(
        value.kind(),
        Undefined | String | Bytes | Seq | Map | Iterable
    )
}

fn is_sequence(value: &Value) -> bool {
    is_iterable(value) && (value.is_undefined() || value.len().is_some())
}

/// What `{% for %}` goes through: Python refuses `None` there. A text has a length to Python, so
/// that its loop knows which character is the last; minijinja's does not.
fn iterable(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().map(Value::from).collect());
    }
    match is_iterable(&value) {
        true => Ok(value),
        false => Err(refusal(format!(
            "a value of type {} is not iterable",
            value.kind()
        ))),
    }
}

/// `value[start:stop:step]`
fn slice(value: &Value, start: &Value, stop: &Value, step: Option<Value>) -> Result<Value, Error> {
    let bounds = Bounds {
        start: bound(start)?,
        stop: bound(stop)?,
        step: step.map_or(Ok(None), |step| bound(&step))?.unwrap_or(1),
    };
    if bounds.step == 0 {
        return Err(refusal("the step of a slice cannot be zero"));
    }
    Ok(match value.kind() {
        ValueKind::String => {
            let text: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            as_safe_as(value, bounds.of(&text).collect())
        }
        ValueKind::Bytes => {
            Value::from_bytes(bounds.of(value.as_bytes().unwrap_or_default()).collect())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let items: Vec<Value> = bounds.of(&items).collect();
            match value.is_tuple() {
                true => Value::from(Tuple::from(items)),
                false => Value::from(items),
            }
        }
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        kind => return Err(refusal(format!("a value of type {kind} cannot be sliced"))),
    })
}

/// A number in brackets; a greater one than any list is long means the same as the greatest.
fn bound(value: &Value) -> Result<Option<i64>, Error> {
    match value.kind() {
        ValueKind::None => Ok(None),
        ValueKind::Bool => Ok(Some(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => {
            let number = i128::try_from(value.clone())?;
            let number = number.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
            Ok(i64::try_from(number).ok())
        }
        kind => Err(refusal(format!(
            "a slice begins and ends at a number, not at a value of type {kind}"
        ))),
    }
}

struct Bounds {
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
}

impl Bounds {
    /// The chosen items, by the rules of Python's `slice.indices`.
    fn of<T: Clone>(&self, items: &[T]) -> impl Iterator<Item = T> {
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let (first, last) = match self.step < 0 {
            true => (-1, length - 1),
            false => (0, length),
        };
        let within = |bound: i64| match bound < 0 {
            true => bound.saturating_add(length).max(first),
            false => bound.min(last),
        };
        let (start, stop) = match self.step < 0 {
            true => (
                self.start.map_or(last, within),
                self.stop.map_or(first, within),
            ),
            false => (
                self.start.map_or(first, within),
                self.stop.map_or(last, within),
            ),
        };
        let step = self.step;
        let places = std::iter::successors(Some(start), move |place| place.checked_add(step));
        let is_before = move |place: &i64| {
            if step < 0 {
                *place > stop
            } else {
                *place < stop
            }
        };
        let chosen = places
            .take_while(is_before)
            .filter_map(|place| usize::try_from(place).ok());
        chosen.filter_map(|place| items.get(place).cloned())
    }
}

fn modulo(left: Value, right: Value) -> Result<Value, Error> {
    if let Some(pattern) = left.as_str() {
        let mut arguments: Vec<Value> = match right.kind() {
            _ if right.is_tuple() => right.try_iter()?.collect(),
            ValueKind::Map if pattern.contains("%(") => {
                let named = pairs(&right).into_iter();
                let named: Kwargs = named.map(|(key, item)| (text_of(&key), item)).collect();
                vec![Value::from(named)]
            }
            _ => vec![right],
        };
        let is_named = arguments.last().is_some_and(Value::is_kwargs);
        if !is_named && arguments.len() > conversions(pattern) {
            return Err(refusal("more values than the text has places for"));
        }
        if left.is_safe() {
            arguments = arguments.iter().map(within_safe).collect();
        }
        let text = formatted(FormatStyle::Printf, pattern, &arguments)?;
        return Ok(as_safe_as(&left, text));
    }
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(&left) || !is_number(&right) {
        let kinds = format!("{} and {}", left.kind(), right.kind());
        return Err(refusal(format!(
            "% works on numbers and texts, not on {kinds}"
        )));
    }
    match (i128::try_from(left.clone()), i128::try_from(right.clone())) {
        (Ok(left), Ok(right)) if is_small(left) && is_small(right) => match right {
            0 => Err(refusal("division by zero")),
            // The remainder has the sign of the divisor.
            _ => Ok(Value::from((left % right + right) % right)),
        },
        _ => {
            let number = |value: Value| match value.kind() {
                ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
                _ => f64::try_from(value),
            };
            let (left, right) = (number(left)?, number(right)?);
            match right == 0.0 {
                true => Err(refusal("division by zero")),
                false => Ok(Value::from(left - right * (left / right).floor())),
            }
        }
    }
}

/// A longer text or list than this is a mistake, or worse.
const MOST_REPEATED: usize = 1 << 24;
/// The same for what is gathered bit by bit: a text may be a whole conversation.
const LONGEST_KEPT: usize = 1 << 26;
const MOST_KEPT: usize = 1 << 20;

/// What is set, unless it has become so long or so deep that it can only be meant to grow for ever.
fn kept(value: Value) -> Result<Value, Error> {
    // Two lists in one are not made one list before somebody goes through them, each time anew.
    let name = value.as_object().map(|object| object.type_name());
    let value = match name.is_some_and(|name| name.ends_with("::MergeSeq")) {
        true => Value::from_iter(value.try_iter()?.take(MOST_KEPT + 1)),
        false => value,
    };
    let is_container = matches!(value.kind(), ValueKind::Seq | ValueKind::Map);
    let is_long = match value.as_str() {
        Some(text) => text.len() > LONGEST_KEPT,
        None => is_container && value.len().is_some_and(|length| length > MOST_KEPT),
    };
    if is_long {
        return Err(refusal("what is set gets too long"));
    }
    // A look at everything takes a while, and a loop that digs comes by again soon.
    if is_container && fastrand::u8(..8) == 0 && is_bottomless(&value) {
        return Err(refusal("what is set nests too deeply"));
    }
    Ok(value)
}

/// Whether a value is deeper than data is, or has no end. Who drops or compares one descends with
/// every level, and a stack has an end.
fn is_bottomless(value: &Value) -> bool {
    const DEEPEST: usize = 200;
    let mut seen = 0;
    let mut open = vec![(value.clone(), 0)];
    while let Some((value, depth)) = open.pop() {
        let inner: Vec<Value> = match value.kind() {
            ValueKind::Seq => value.try_iter().into_iter().flatten().collect(),
            ValueKind::Map => pairs(&value).into_iter().map(|(_, item)| item).collect(),
            _ => continue,
        };
        seen += inner.len() + 1;
        if depth > DEEPEST || seen > 2 * MOST_KEPT {
            return true;
        }
        open.extend(inner.into_iter().map(|inner| (inner, depth + 1)));
    }
    false
}

/// `left * right`, which also repeats texts and lists.
fn times(left: &Value, right: &Value) -> Result<Value, Error> {
    let is_many = |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq);
    let (many, count) = match (is_many(left), is_many(right)) {
        (true, false) => (left, right),
        (false, true) => (right, left),
        _ => return product(left, right),
    };
    let count = bound(count)?.ok_or_else(|| refusal("none repeats nothing"))?;
    let count = usize::try_from(count).unwrap_or(0);
    let length = many
        .as_str()
        .map_or_else(|| many.len(), |text| Some(text.len()));
    if length.unwrap_or(0).saturating_mul(count) > MOST_REPEATED {
        return Err(refusal("what is repeated gets too long"));
    }
    if let Some(text) = many.as_str() {
        return Ok(as_safe_as(many, text.repeat(count)));
    }
    let items: Vec<Value> = many.try_iter()?.collect();
    let items: Vec<Value> = std::iter::repeat_n(items, count).flatten().collect();
    Ok(match many.is_tuple() {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    })
}

/// `left + right`; what is added to a safe text is escaped.
fn plus(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let are_texts = left.as_str().is_some() && right.as_str().is_some();
    if are_texts && (left.is_safe() || right.is_safe()) {
        let sum = [left, right].map(|part| text_of(&within_safe(part)));
        return Ok(Value::from_safe_string(sum.concat()));
    }
    let sum = state.env().compile_expression("left + right")?;
    sum.eval(Value::from_pairs([
        ("left", left.clone()),
        ("right", right.clone()),
    ]))
}

fn product(left: &Value, right: &Value) -> Result<Value, Error> {
    let impossible = || {
        let kinds = format!("{} and {}", left.kind(), right.kind());
        refusal(format!("* works on numbers, not on {kinds}"))
    };
    let whole = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()),
        _ => Err(impossible()),
    };
    match (whole(left), whole(right)) {
        (Some(left), Some(right)) => {
            let product = left.checked_mul(right).ok_or_else(impossible)?;
            Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from))
        }
        _ => Ok(Value::from(number(left)? * number(right)?)),
    }
}

/// How many values a pattern takes at most; `%%` takes none, `*` one more.
fn conversions(pattern: &str) -> usize {
    let rest = pattern.replace("%%", "");
    rest.matches(['%', '*']).count()
}

/// Whether adding two such numbers cannot overflow.
fn is_small(number: i128) -> bool {
    number.unsigned_abs() < 1 << 120
}

/// Calls a macro with what it has no parameters for in `varargs` and `kwargs`.
#[derive(Debug)]
struct VariadicMacro {
    inner: Value,
    names: Vec<String>,
}

impl Object for VariadicMacro {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        let (positional, named) = match arguments.split_last() {
            Some((last, before)) if last.is_kwargs() => (before, pairs(last)),
            _ => (arguments, Vec::new()),
        };
        let (own, rest) = positional.split_at(positional.len().min(self.names.len()));
        let is_own = |(key, _): &(Value, Value)| {
            let key = key.as_str().unwrap_or_default();
            key == "caller" || self.names.iter().any(|name| name == key)
        };
        let (mut passed, others): (Vec<_>, Vec<_>) = named.into_iter().partition(is_own);
        passed.push(("varargs".into(), Value::from(Tuple::from(rest))));
        passed.push(("kwargs".into(), Value::from_pairs(others)));
        let passed: Kwargs = passed
            .into_iter()
            .map(|(key, item)| (text_of(&key), item))
            .collect();
        let mut arguments = own.to_vec();
        arguments.push(Value::from(passed));
        self.inner.call(state, &arguments)
    }
}

/// Text that needs no escaping if that which it was made of needed none.
fn as_safe_as(value: &Value, text: String) -> Value {
    match value.is_safe() {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    }
}

/// What a safe text takes in: texts and what prints as one are escaped, by name as well.
pub(super) fn within_safe(value: &Value) -> Value {
    match value.kind() {
        _ if value.is_safe() => value.clone(),
        ValueKind::Number | ValueKind::Bool => value.clone(),
        _ if value.is_kwargs() => {
            let named = pairs(value).into_iter();
            let named: Kwargs = named
                .map(|(key, item)| (text_of(&key), within_safe(&item)))
                .collect();
            Value::from(named)
        }
        _ => escaped(&text_of(value)),
    }
}

fn cased(value: &Value, how: &str) -> Value {
    let text = text_of(value);
    as_safe_as(value, changed_case(&text, how).unwrap_or(text))
}

fn trim(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let set = arguments.text(0, "chars")?;
    arguments.finish(1)?;
    let text = text_of(value);
    let trimmed = stripped(&text, "strip", set.as_deref());
    Ok(as_safe_as(value, trimmed.to_owned()))
}

fn join(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let between = arguments.get(0, "d").unwrap_or_else(|| Value::from(""));
    let attribute = arguments.get(1, "attribute").filter(|name| !name.is_none());
    arguments.finish(2)?;
    let mut parts = Vec::new();
    for item in value.try_iter()? {
        let path = attribute.as_ref().map(text_of);
        let steps = path.iter().flat_map(|path| path.split('.'));
        let item = steps.fold(item, |item, step| {
            let step = step
                .parse::<i64>()
                .map_or_else(|_| Value::from(step), Value::from);
            item.get_item(&step).unwrap_or_default()
        });
        parts.push(text_of(&item));
    }
    Ok(Value::from(parts.join(&text_of(&between))))
}

fn reverse(value: &Value, _: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(as_safe_as(value, text.chars().rev().collect()));
    }
    if !is_iterable(value) {
        return Err(refusal(format!(
            "a value of type {} has no order",
            value.kind()
        )));
    }
    let mut items: Vec<Value> = value.try_iter()?.collect();
    items.reverse();
    Ok(Value::from(items))
}

fn length(value: &Value, _: &[Value]) -> Result<Value, Error> {
    length_of(value).map(Value::from)
}

fn length_of(value: &Value) -> Result<usize, Error> {
    let length = match value.kind() {
        ValueKind::Undefined => Some(0),
        ValueKind::Bytes => value.as_bytes().map(<[u8]>::len),
        _ => value.len(),
    };
    let no_length = || refusal(format!("a value of type {} has no length", value.kind()));
    length.ok_or_else(no_length)
}

fn int(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let other = arguments
        .get(0, "default")
        .unwrap_or_else(|| Value::from(0));
    let base = arguments.number(1, "base")?.unwrap_or(10);
    arguments.finish(2)?;
    let truncated = |number: f64| match number.is_finite() {
        true => Some(Value::from(number.trunc() as i128)),
        false => None,
    };
    let converted = match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Some(Value::from(u8::from(value.is_true()))),
        ValueKind::Number => match float(value) {
            Some(number) => truncated(number),
            None => Some(value.clone()),
        },
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let whole = parse_int(text, base).map(Value::from);
            whole.or_else(|| truncated(parse_float(text)?))
        }
        _ => None,
    };
    Ok(converted.unwrap_or(other))
}

fn parse_int(text: &str, base: i64) -> Option<i128> {
    let text = text.strip();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    let is_spaced = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    let base = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))?;
    if is_spaced || digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(sign * number)
}

fn parse_float(text: &str) -> Option<f64> {
    text.strip().replace('_', "").parse().ok()
}

fn to_float(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let other = arguments
        .get(0, "default")
        .unwrap_or_else(|| Value::from(0.0));
    arguments.finish(1)?;
    let converted = match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => parse_float(value.as_str().unwrap_or_default()),
        _ => None,
    };
    Ok(converted.map_or(other, Value::from))
}

fn default(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let other = arguments
        .get(0, "default_value")
        .unwrap_or_else(|| Value::from(""));
    let by_truth = arguments.flag(1, "boolean");
    arguments.finish(2)?;
    Ok(
        match value.is_undefined() || (by_truth && !value.is_true()) {
            true => other,
            false => value.clone(),
        },
    )
}

fn end(value: &Value, last: bool) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::UNDEFINED);
    }
    let mut items = value.try_iter()?;
    let item = if last { items.last() } else { items.next() };
    Ok(item.unwrap_or(Value::UNDEFINED))
}

fn items(value: &Value, _: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => Ok(entries(pairs(value))),
        kind => Err(refusal(format!(
            "items takes a mapping, not a value of type {kind}"
        ))),
    }
}

fn entries(pairs: Vec<(Value, Value)>) -> Value {
    let entry = |(key, item)| Value::from(Tuple::from([key, item]));
    pairs.into_iter().map(entry).collect()
}

fn dict_sort(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let keeps_case = arguments.flag(0, "case_sensitive");
    let by = arguments.text(1, "by")?.unwrap_or_else(|| "key".to_owned());
    let reverse = arguments.flag(2, "reverse");
    arguments.finish(3)?;
    if value.kind() != ValueKind::Map {
        return Err(refusal("dictsort takes a mapping"));
    }
    let mut sorted = pairs(value);
    let sort_key = |(key, item): &(Value, Value)| {
        let chosen = if by == "value" { item } else { key };
        match chosen.as_str() {
            Some(text) if !keeps_case => Value::from(text.to_lowercase()),
            _ => chosen.clone(),
        }
    };
    let mut keys = sorted
        .iter()
        .map(sort_key)
        .map(|key| key.as_str().is_some());
    let first = keys.next();
    if keys.any(|is_text| Some(is_text) != first) {
        return Err(refusal("texts and other values have no order"));
    }
    // A reversed sort keeps equal ones in their order, as Python's does.
    sorted.sort_by(|a, b| match reverse {
        true => sort_key(b).cmp(&sort_key(a)),
        false => sort_key(a).cmp(&sort_key(b)),
    });
    Ok(entries(sorted))
}

fn replace(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let part = |place, name| {
        let part = arguments.get(place, name);
        part.map(|part| text_of(&part))
            .ok_or_else(|| Error::from(ErrorKind::MissingArgument))
    };
    let (old, new) = (part(0, "old")?, part(1, "new")?);
    let count = arguments.number(2, "count")?;
    arguments.finish(3)?;
    let text = text_of(value);
    Ok(Value::from(match count.map(usize::try_from) {
        Some(Ok(count)) => text.replacen(&old, &new, count),
        _ => text.replace(&old, &new),
    }))
}

fn indent(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let indent = match arguments.get(0, "width") {
        Some(width) if width.as_str().is_some() => text_of(&width),
        _ => pad("", "ljust", arguments.number(0, "width")?.unwrap_or(4), " "),
    };
    let (first, blank) = (arguments.flag(1, "first"), arguments.flag(2, "blank"));
    arguments.finish(3)?;
    let text = text_of(value) + "\n";
    let mut out = String::with_capacity(text.len());
    for (index, line) in lines(&text, false).into_iter().enumerate() {
        out.push_str(if index == 0 { "" } else { "\n" });
        let is_indented = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        out.push_str(if is_indented { &indent } else { "" });
        out.push_str(line);
    }
    Ok(as_safe_as(value, out))
}

fn truncate(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let length = arguments.number(0, "length")?.unwrap_or(255);
    let cuts_words = arguments.flag(1, "killwords");
    let end = arguments
        .text(2, "end")?
        .unwrap_or_else(|| "...".to_owned());
    let leeway = arguments.number(3, "leeway")?.unwrap_or(5);
    arguments.finish(4)?;
    let count = length_of(value)?;
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let room = length.saturating_sub(i64::try_from(end.chars().count()).unwrap_or(i64::MAX));
    if room < 0 || leeway < 0 {
        return Err(refusal("truncate needs room for its end"));
    }
    if count <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let Some(text) = value.as_str() else {
        return Err(refusal("truncate cuts texts only"));
    };
    let kept: String = text
        .chars()
        .take(usize::try_from(room).unwrap_or(0))
        .collect();
    let kept = match cuts_words {
        true => &kept,
        false => kept.rsplit_once(' ').map_or(&*kept, |(before, _)| before),
    };
    let end = match value.is_safe() {
        true => text_of(&escaped(&end)),
        false => end,
    };
    Ok(as_safe_as(value, format!("{kept}{end}")))
}

fn word_count(value: &Value, _: &[Value]) -> Result<Value, Error> {
    let text = text_of(value);
    let words = text.split(|c: char| !is_word(c));
    Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
}

fn strip_tags(value: &Value, _: &[Value]) -> Result<Value, Error> {
    let text = text_of(value);
    let without = |text: &str, open: &str, close: &str| {
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(open) {
            let Some(length) = rest[start..].find(close) else {
                break;
            };
            out.push_str(&rest[..start]);
            rest = &rest[start + length + close.len()..];
        }
        out + rest
    };
    let text = without(&without(&text, "<!--", "-->"), "<", ">");
    let words = text.split(is_space).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    let plain = entities
        .iter()
        .fold(words.join(" "), |text, (entity, c)| text.replace(entity, c));
    Ok(Value::from(plain))
}

fn center(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let width = arguments.number(0, "width")?.unwrap_or(80);
    arguments.finish(1)?;
    Ok(as_safe_as(
        value,
        pad(&text_of(value), "center", width, " "),
    ))
}

fn url_encode(value: &Value, _: &[Value]) -> Result<Value, Error> {
    let quoted = |value: &Value, is_query: bool| {
        let mut out = String::new();
        for byte in text_of(value).bytes() {
            match byte {
                b' ' if is_query => out.push('+'),
                b'/' if !is_query => out.push('/'),
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                    out.push(char::from(byte));
                }
                _ => out.push_str(&format!("%{byte:02X}")),
            }
        }
        out
    };
    let pair =
        |(key, item): &(Value, Value)| format!("{}={}", quoted(key, true), quoted(item, true));
    Ok(Value::from(match value.kind() {
        ValueKind::Map => pairs(value).iter().map(pair).collect::<Vec<_>>().join("&"),
        _ => quoted(value, false),
    }))
}

pub(super) fn escaped(text: &str) -> Value {
    let escaped = text
        .replace('&', "&amp;")
        .replace('>', "&gt;")
        .replace('<', "&lt;")
        .replace('\'', "&#39;")
        .replace('"', "&#34;");
    Value::from_safe_string(escaped)
}
