//! What the compiler accepts, refuses and says. That its output works is tested where it is compiled:
//! `xdr/src/sink_tests.rs`.

#![allow(clippy::unwrap_used)]

use sluice_xdr_gen::ast::{Body, Definition, Shape, Type, Value};
use sluice_xdr_gen::lex::Number;
use sluice_xdr_gen::model::Model;
use sluice_xdr_gen::{GenError, emit, parse};

fn parsed(text: &str) -> Vec<Definition> {
    parse::parse("test.x", text).unwrap()
}

fn compiled(text: &str) -> Result<String, GenError> {
    let definitions = parse::parse("test.x", text)?;
    emit::emit(&Model::new(&definitions, &[])?, &definitions)
}

fn syntax_error(text: &str) -> (usize, String) {
    match parse::parse("test.x", text) {
        Err(GenError::Syntax { line, message, .. }) => (line, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn constants_in_every_radix_up_to_64_bits() {
    for (text, value) in [
        ("10", 10),
        ("0x10", 16),
        ("0X1f", 31),
        ("010", 8),
        ("-1", -1),
        ("0xffffffffffffffff", i128::from(u64::MAX)),
        ("18446744073709551615", i128::from(u64::MAX)),
        ("-9223372036854775808", i128::from(i64::MIN)),
        ("5UL", 5),
    ] {
        let definitions = parsed(&format!("const A = {text};"));
        assert!(
            matches!(definitions[0].body, Body::Const(Value::Number(Number { value: v, .. })) if v == value),
            "{text}: {definitions:?}"
        );
    }
    for text in ["18446744073709551616", "08", "0xg", "-18446744073709551615", "12ab"] {
        assert!(parse::parse("test.x", &format!("const A = {text};")).is_err(), "{text}");
    }
}

#[test]
fn declarations() {
    let named = |n: &str| Type::Named(n.into());
    let number = |value| Value::Number(Number { value, hex: false });
    for (text, shape) in [
        ("int a", Shape::Plain(Type::Int)),
        ("unsigned a", Shape::Plain(Type::Uint)),
        ("unsigned int a", Shape::Plain(Type::Uint)),
        ("unsigned hyper a", Shape::Plain(Type::Uhyper)),
        ("struct x a", Shape::Plain(named("x"))),
        ("x a[4]", Shape::Array(named("x"), number(4))),
        ("x a<4>", Shape::List(named("x"), Some(number(4)))),
        ("x a<>", Shape::List(named("x"), None)),
        ("x *a", Shape::Optional(named("x"))),
        ("opaque a[4]", Shape::OpaqueFixed(number(4))),
        ("opaque a<N>", Shape::Opaque(Some(Value::Name("N".into())))),
        ("string a<>", Shape::Opaque(None)),
    ] {
        assert_eq!(parsed(&format!("typedef {text};"))[0].body, Body::Typedef(shape), "{text}");
    }
}

#[test]
fn syntax_errors_name_line_and_expectation() {
    assert_eq!(syntax_error("const A = 1;\nconst = 2;"), (2, "expected a name, found =".into()));
    assert_eq!(syntax_error("struct a {\n int b\n};"), (3, "expected ';', found }".into()));
    assert_eq!(syntax_error("enum a { B };").1, "expected '=', found }");
    assert_eq!(syntax_error("struct a { string b[4]; };").1, "expected '<', found [");
    assert_eq!(syntax_error("const A = 1; $").1, "unexpected character '$'");
    assert_eq!(syntax_error("/* no end").1, "a comment does not end");
    assert_eq!(syntax_error("struct a {").1, "expected a name, found the end");
    assert_eq!(syntax_error("union a switch (int b) { int c; };").1, "expected case, found int");
}

#[test]
fn names_must_mean_something_once() {
    assert_eq!(compiled("struct a { b c; };"), Err(GenError::Undefined("b".into())));
    assert_eq!(compiled("struct a { int c<N>; };"), Err(GenError::Undefined("N".into())));
    assert_eq!(compiled("union a switch (b c) { default: void; };"), Err(GenError::Undefined("b".into())));
    assert_eq!(compiled("const A = B; const B = A;"), Err(GenError::Undefined("A".into())));
    assert_eq!(compiled("const A = 1; enum e { A = 1 };"), Err(GenError::Duplicate("A".into())));
    assert_eq!(compiled("typedef int a; typedef int a;"), Err(GenError::Duplicate("a".into())));
}

#[test]
fn what_rust_cannot_say_is_refused() {
    for text in [
        "struct a { quadruple b; };",
        "union a switch (hyper b) { case 1: void; };",
        "enum a { B = 0x1ffffffff };",
        "struct a { opaque b[-1]; };",
    ] {
        assert!(compiled(text).is_err(), "{text}");
    }
}

#[test]
fn names_may_come_before_their_definition() {
    let rust = compiled("struct a { b c[N]; }; typedef int b; const N = M; const M = 2;").unwrap();
    assert!(rust.contains("pub c: [b; N as usize]"), "{rust}");
}

#[test]
fn keywords_get_an_underscore() {
    let rust = compiled("struct a { int type; int match; };").unwrap();
    assert!(rust.contains("pub type_: i32") && rust.contains("pub match_: i32"), "{rust}");
}

#[test]
fn comments_become_documentation() {
    let rust = compiled(
        "/* about a */\nstruct a {\n  /* above b */\n  int b;\n  int c; /* behind c,\n            two lines */\n};",
    )
    .unwrap();
    for line in ["/// about a", "/// above b", "/// behind c, two lines"] {
        assert!(rust.contains(line), "{line}: {rust}");
    }
}

#[test]
fn a_tree_is_boxed_and_a_list_is_a_vector() {
    let rust = compiled("struct t { t *l; t *r; }; struct n { int v; n *next; }; typedef n *list;").unwrap();
    assert!(rust.contains("pub l: Option<Box<t>>"), "{rust}");
    assert!(rust.contains("pub type list = Vec<n>"), "{rust}");
    assert!(!rust.contains("next"), "{rust}");
}

/// Whatever is typed, the compiler answers; it does not panic or loop.
#[test]
fn damaged_descriptions_never_panic() {
    let spec = include_str!("../../spec/sink.x");
    for at in 0..spec.len() {
        for text in [&spec[..at], &spec[at..], &[&spec[..at], "}", &spec[at + 1..]].concat()] {
            let _ = compiled(text);
        }
    }
}
