//! Chat templates: Jinja programs, run as transformers runs them.
//!
//! The engine is `minijinja`, with Python's ways of printing, its methods and Jinja2's filters put
//! in place of its own. What still differs, and no chat template is known to use: comparing a text
//! with a number has a result instead of an error; the views of a dictionary, methods and generators
//! print as lists or nothing; `{% autoescape %}` and the filters `wordwrap`,
//! `xmlattr`, `filesizeformat`, `pprint` and `random` are missing; `\\N{name}` in a text is refused;
//! a parameter of a macro takes its default also where what is undefined is passed for it; whole
//! numbers have 128 bits.

mod clock;
mod filters;
mod methods;
mod python;
mod source;

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, State, Value};

/// A compiled template.
pub(super) struct Template {
    environment: Environment<'static>,
}

const NAME: &str = "chat_template";

/// How many instructions a rendering may take, where a thousand messages take a few hundred
/// thousand. A template comes with a model and may loop for ever, by mistake or not.
const LONGEST: u64 = 10_000_000;

/// What stands around `{% generation %}` blocks during a rendering.
const MARK: &str = "__mark";

impl Template {
    /// Compiles with the settings and additions of transformers.
    pub(super) fn new(source: &str) -> Result<Self, Error> {
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?;
        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_fuel(Some(LONGEST));
        environment.set_unknown_method_callback(methods::call);
        environment.set_formatter(|out, _, value| Ok(out.write_str(&python::text_of(value))?));
        filters::add_to(&mut environment);
        environment.add_filter(source::GENERATION, generation);
        // Line ends are one character to Jinja2, within texts too.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        environment.add_template_owned(NAME, source::rewrite(&source)?)?;
        Ok(Self { environment })
    }

    /// The text, and where in it, counted in bytes, the `{% generation %}` blocks are.
    pub(super) fn render(
        &self,
        variables: &[(String, Value)],
        now: DateTime,
    ) -> Result<(String, Vec<Range<usize>>), Error> {
        // No message can contain a mark that was not known when it was written.
        let mark: Arc<str> = format!("\u{fdd0}{:016x}", fastrand::u64(..)).into();
        let marked = self.run(variables, now, &mark)?;
        let mut text = String::with_capacity(marked.len());
        let (mut open, mut spans) = (Vec::new(), Vec::new());
        let mut parts = marked.split(&*mark);
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            match part.strip_prefix('<') {
                Some(rest) => {
                    open.push(text.len());
                    text.push_str(rest);
                }
                None => {
                    spans.extend(open.pop().map(|start| start..text.len()));
                    text.push_str(part.strip_prefix('>').unwrap_or(part));
                }
            }
        }
        spans.sort_by_key(|span: &Range<usize>| span.start);
        Ok((text, spans))
    }

    fn run(
        &self,
        variables: &[(String, Value)],
        now: DateTime,
        mark: &Arc<str>,
    ) -> Result<String, Error> {
        let clock = Value::from_function(move |format: String| {
            clock::strftime(now, &format).map_err(|error| python::refusal(error.to_string()))
        });
        let mut context = vec![
            ("strftime_now".to_owned(), clock),
            (MARK.to_owned(), Value::from(Arc::clone(mark))),
        ];
        context.extend(variables.iter().cloned());
        let template = self.environment.get_template(NAME)?;
        let render = || template.render(Value::from_pairs(context));
        // A template is anyone's: where minijinja panics, only this rendering is lost.
        let rendered = std::panic::catch_unwind(AssertUnwindSafe(render));
        rendered.unwrap_or_else(|_| Err(python::refusal("the template engine panicked")))
    }
}

/// What the assistant said, between marks.
fn generation(state: &mut State<'_, '_>, text: String) -> Result<Value, Error> {
    let mark = state.lookup(MARK).and_then(|mark| mark.to_str());
    let mark = mark.ok_or_else(|| python::refusal("no mark is set"))?;
    Ok(Value::from(format!("{mark}<{text}{mark}>")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_refusal() {
        let template = Template::new("{{ fail() }}").unwrap();
        let fail = Value::from_function(|| -> Value { panic!("as minijinja may") });
        let rendered = template.render(&[("fail".to_owned(), fail)], DateTime::default());
        let error = rendered.unwrap_err().to_string();
        assert!(error.contains("the template engine panicked"), "{error}");
    }
    #[test]
    fn numbers_beyond_reason_are_harmless() {
        #[track_caller]
        fn check(source: &str, expected: Option<&str>) {
            let rendered = Template::new(source)
                .unwrap()
                .render(&[], DateTime::default());
            assert_eq!(rendered.ok().map(|(text, _)| text).as_deref(), expected);
        }
        check("{{ 'a b'|truncate(-9223372036854775808) }}", None);
        let widest = "{{ [1]|tojson(indent=1152921504606846976)|length }}";
        check(widest, Some("1048581"));
    }

    #[track_caller]
    fn refusal_of(source: &str) -> String {
        let rendered = Template::new(source)
            .unwrap()
            .render(&[], DateTime::default());
        rendered.unwrap_err().to_string()
    }

    /// Neither deep values, whose end takes as much stack, nor long ones.
    #[test]
    fn nothing_grows_for_ever() {
        let grow = |begin: &str, turn: &str| {
            refusal_of(&format!(
                "{{% set n = namespace(a={begin}) %}}{{% for i in range(90000) %}}\
                 {{% set n.a = {turn} %}}{{% endfor %}}"
            ))
        };
        for (begin, turn) in [
            ("[]", "[n.a]"),
            ("[]", "{'x': n.a}"),
            ("[]", "namespace(a=n.a)"),
            ("[]", "[1, [n.a, 2]]"),
        ] {
            let error = grow(begin, turn);
            assert!(error.contains("nests too deeply"), "{error}");
        }
        for (begin, turn) in [("'ab'", "n.a + n.a"), ("[1]", "n.a + n.a")] {
            let error = grow(begin, turn);
            assert!(error.contains("gets too long"), "{error}");
        }
        let doubled = "{% set a = a + a %}".repeat(40);
        let error = refusal_of(&format!("{{% set a = 'ab' %}}{doubled}"));
        assert!(error.contains("gets too long"), "{error}");
        for wide in [
            "{{ '%99999999999d' % 1 }}",
            "{{ '%.99999999999f' % 1 }}",
            "{{ '%(a)99999999999d' % {'a': 1} }}",
            "{{ '%*d' % (99999999999, 1) }}",
            "{{ '{:99999999999}'.format(1) }}",
            "{{ '{:x>99999999999}'.format(1) }}",
            "{{ '{:{w}}'.format(1, w=99999999999) }}",
        ] {
            let error = refusal_of(wide);
            assert!(error.contains("beyond reason"), "{wide}: {error}");
        }
    }

    #[test]
    fn what_is_within_itself_is_printed_to_an_end() {
        let said = |source: &str| {
            let rendered = Template::new(source).unwrap();
            rendered.render(&[], DateTime::default()).unwrap().0
        };
        let said_itself = said("{% set n = namespace() %}{% set n.a = [n] %}{{ n }}");
        assert!(said_itself.contains("..."), "{said_itself}");
        assert_eq!(
            said("{% set n = namespace(a=1) %}{{ n }}"),
            "<Namespace {'a': 1}>"
        );
        assert_eq!(
            said("{{ '%x 123456789 %%99999999d' % 255 }}"),
            "ff 123456789 %99999999d"
        );
    }
}
