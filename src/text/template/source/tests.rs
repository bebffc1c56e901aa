//! What is rewritten, and what is left alone.

use super::*;

#[track_caller]
fn check(source: &str, expected: &str) {
    assert_eq!(rewrite(source).unwrap(), expected);
}

#[test]
fn most_of_a_template_stays_as_it_is() {
    for source in [
        "",
        "plain { text } %",
        "{# 1 % 2 #}{% raw %}{{ 1 % 2 }}{% endraw %}",
        "{%- if a.b['c'](d) | e(1)|f is g -%} x {%+ endif +%}",
        "{{ '%}' + \"}}\" }} {{ {'a': {'b': 1}} }}",
        "{{ -1 + (2 + 3) ** 2 // y }}{% set x = %}",
        "{{ unfinished",
        "{% macro m(a, b=2) %}{{ a }}{% endmacro %}",
    ] {
        check(source, source);
    }
}

#[test]
fn remainders_become_calls() {
    check("{{ a % b }}", "{{ __modulo(a, b) }}");
    check(
        "{{ 'x' 'y%s' % (a % 2, b)|c ~ d }}",
        "{{ __concat(__modulo('x' 'y%s', (__modulo(a, 2), b)|c), d) }}",
    );
    check(
        "{{ a * b % -c.d[0] / 2 == 0 }}",
        "{{ __modulo(__times(a, b), -c.d[0]) / 2 == 0 }}",
    );
    check(
        "{% if loop.index0 % 2 %}",
        "{% if __modulo(loop.index0, 2) %}",
    );
}

#[test]
fn slices_become_calls() {
    check("{{ a[1] }}{{ a[{'b':1}] }}", "{{ a[1] }}{{ a[{'b':1}] }}");
    check("{{ -a.b[1:] + c }}", "{{ -__slice(a.b, 1, none) + c }}");
    check(
        "{{ a(b)[::-1][c[0] % 2 if d else e[:1]:]|f }}",
        "{{ __slice(__slice(a(b), none, none, -1), __modulo(c[0], 2) if d else \
         __slice(e, none, 1), none)|f }}",
    );
    check("{% elif (a)[1:] %}", "{% elif __slice((a), 1, none) %}");
    check("{{ a[1: }}", "{{ a[1: }}");
}

#[test]
fn loops_check_what_they_go_through() {
    check(
        "{% for a, b in c.d if a %}",
        "{% for a, b in __iterable( c.d ) if a %}",
    );
    check(
        "{%- for a in 1, 2 -%}",
        "{%- for a in __iterable(( 1, 2 )) -%}",
    );
    check(
        "{% for x in (y if z else w) recursive %}",
        "{% for x in __iterable( (y if z else w) ) recursive %}",
    );
}

#[test]
fn blocks_are_renamed() {
    check(
        "{%- generation -%} a {%+ endgeneration %}",
        "{%- filter __generation %}{% with -%} a {%+ endwith %}{% endfilter %}",
    );
    check(
        "{% set a %}{% set b = c(d=1) %}{%- endset %}{% set e|f(g=1) -%}{% endset %}",
        "{% set a %}{% with %}{% set b =__kept(( c(d=1) )) %}{%- endwith %}{% endset %}\
         {% set e|f(g=1) %}{% with -%}{% endwith %}{% endset %}",
    );
    check(
        "{% macro m(a, b=(1, 2)) %}{{ varargs }}{%- endmacro -%}\n",
        "{% macro __m(a, b=(1,2), varargs=(), kwargs={}) %}{{ varargs }}{%- endmacro %}\
         {% set m = __variadic(__m, ['a', 'b']) -%}\n",
    );
}

#[test]
fn texts_are_joined_by_a_call() {
    check(
        "{{ -a ~ b * 2|c ~ 'd' == e }}",
        "{{ __concat(-a, __times(b, 2|c), 'd') == e }}",
    );
    check("{{ a ~ }}", "{{ a ~ }}");
}

#[test]
fn tests_bind_closer_than_what_is_rewritten() {
    check(
        "{{ a ~ b is not none ~ 'c' }}",
        "{{ __concat(a, b is not none, 'c') }}",
    );
    check(
        "{% if a is in [b % 2] and c * d is eq e[1:] %}",
        "{% if a is in [__modulo(b, 2)] and __times(c, d is eq __slice(e, 1, none)) %}",
    );
    check(
        "{{ x if a is divisibleby(3) * 2 else b is string }}",
        "{{ x if __times(a is divisibleby(3), 2) else b is string }}",
    );
    check("{{ a is }}", "{{ a is }}");
}

#[test]
fn macros_begin_with_what_they_need() {
    check(
        "{%- macro m(a, b=a|c, d=[1]) -%}\n{% set n.x = 1 %}{% set n.y = b %}{% endmacro %}",
        "{%- macro m(a, b=__unset, d=[1]) %}{% set b = (a|c) if b is undefined else b \
         %}{% if n %}{% endif -%}\n{% set n.x =__kept(( 1 )) %}{% set n.y =__kept(( b )) %}{% endmacro %}",
    );
}

#[test]
fn sums_become_calls_where_texts_may_be_safe() {
    check("{{ a + b }}", "{{ a + b }}");
    check(
        "{{ a|safe + -b ~ c - d + 'e' if f + 1 }}",
        "{{ __plus(__plus(a|safe, __concat(-b, c)) - d, 'e') if __plus(f, 1) }}",
    );
    check(
        "{% set x = a + [b + 'escape'] %}{% for y in z + w %}",
        "{% set x =__kept(( __plus(a, [__plus(b, 'escape')]) )) %}\
         {% for y in __iterable( __plus(z, w) ) %}",
    );
    check("{{ a|e + }}", "{{ a|e + }}");
}

#[test]
fn escapes_are_spelled_out() {
    check(r"{{ '\n\x41\101\'\q' }}\a", r"{{ '\n\x41\101\'\q' }}\a");
    check(
        "{{ '\\a\\v\\/\\\n\\U0001F600\\U00000027\\400\\é' }}",
        "{{ '\u{7}\u{b}\\\\/😀\\'Ā\\\\xe9' }}",
    );
    check(r"{{ '\N{BULLET}\U00110000' }}", r"{{ '\x__{BULLET}\x__' }}");
}

#[test]
fn words_of_defaults_stay_apart() {
    check(
        "{% macro m(a, b=not c or 'd' if e is in [f, g] else h.i[1]) %}",
        "{% macro m(a, b=not c or 'd' if e is in[f,g]else h.i[1]) %}",
    );
}

#[test]
fn what_is_set_is_looked_at() {
    check("{% set x=1 %}", "{% set x=__kept((1 )) %}");
    check(
        "{%- set a, b = c, d -%}",
        "{%- set a, b =__kept(( c, d )) -%}",
    );
    check(
        "{% set n.x = a % b %}",
        "{% set n.x =__kept(( __modulo(a, b) )) %}",
    );
}

/// Whoever reads a template descends with what is in it, and would have no stack left.
#[test]
fn what_nests_too_deeply_is_refused() {
    #[track_caller]
    fn check(begin: &str, again: &str, end: &str, fits: usize) {
        let template = |times: usize| {
            let source = format!("{begin}{}{end}", again.repeat(times));
            super::super::Template::new(&source).map(drop)
        };
        assert!(template(fits).is_ok(), "{:?}", template(fits));
        // Up to the limit, what is taken must fit into this thread's stack.
        let _ = (100..=400).step_by(25).map(template).collect::<Vec<_>>();
        template(10_000).unwrap_err();
        template(100_000).unwrap_err();
    }
    for (begin, again, end) in [
        ("{{ a", ".b", " }}"),
        ("{{ a", "[0]", " }}"),
        ("{{ a", "[0:1]", " }}"),
        ("{{ a", "()", " }}"),
        ("{{ a", "|e", " }}"),
        ("{{ ", "not ", "a }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ a", " and a", " }}"),
        ("{{ a", " ** a", " }}"),
        ("{{ a", " % a", " }}"),
        ("{{ a", " if a else a", " }}"),
        ("{% set x = a", " + a", " %}"),
        ("{% for x in a", ".b", " %}{% endfor %}"),
        ("{% if a %}", "{% elif b %}", "{% endif %}"),
    ] {
        check(begin, again, end, 50);
    }
    // Brackets that are closed, which are read to their end.
    for (begin, open, close) in [
        ("{{ ", "(", ")"),
        ("{{ ", "[", "]"),
        ("{{ ", "{'a': ", "}"),
        ("{{ a", "[b", "]"),
        ("{{ ", "a(b % ", ")"),
    ] {
        for times in [10_000, 100_000] {
            let end = format!("a{} }}}}", close.repeat(times));
            let source = format!("{begin}{}{end}", open.repeat(times));
            let error = rewrite(&source).unwrap_err().to_string();
            assert!(error.contains("too long"), "{error}");
        }
    }
    for (begin, again, end) in [
        ("", "{% macro a() %}", ""),
        ("", "{% call a() %}", ""),
        ("", "{% if a %}", ""),
        ("", "{% for a in b %}", ""),
    ] {
        check(begin, again, end, 0);
    }
    // What is long is not deep.
    let list = format!("{{{{ [{}] }}}}", "a.b, ".repeat(10_000));
    assert!(rewrite(&list).is_ok());
}

#[test]
fn the_line_break_after_raw_stays() {
    check("{% raw %}\na{% endraw %}\n", "{% raw %}\n\na{% endraw %}\n");
    let taken = "{% raw -%}\na{% endraw %}";
    check(taken, taken);
}
