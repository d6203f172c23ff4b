//! Tokens to definitions, by recursive descent.

use crate::ast::{Arm, Body, Declaration, Definition, Enumerator, Shape, Type, Value};
use crate::error::GenError;
use crate::lex::{Comment, Kind, Token, lex};

/// Parses one description. `file` names it in errors.
pub fn parse(file: &str, text: &str) -> Result<Vec<Definition>, GenError> {
    let (tokens, comments) = lex(file, text)?;
    let mut parser = Parser { file, tokens: &tokens, at: 0, comments: &comments, definitions: Vec::new() };
    while parser.peek().is_some() {
        parser.definition()?;
    }
    Ok(parser.definitions)
}

struct Parser<'a> {
    file: &'a str,
    tokens: &'a [Token],
    at: usize,
    comments: &'a [Comment],
    definitions: Vec<Definition>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|t| &t.kind)
    }

    /// Line of the next token, or of the last.
    fn line(&self) -> usize {
        self.tokens.get(self.at).or_else(|| self.tokens.last()).map_or(1, |t| t.line)
    }

    /// Line of the token just consumed.
    fn last_line(&self) -> usize {
        self.at.checked_sub(1).and_then(|i| self.tokens.get(i)).map_or(1, |t| t.line)
    }

    fn error<T>(&self, expected: &str) -> Result<T, GenError> {
        let found = match self.peek() {
            Some(Kind::Ident(s)) => s.clone(),
            Some(Kind::Number(n)) => n.value.to_string(),
            Some(Kind::Punct(c)) => c.to_string(),
            None => "the end".into(),
        };
        let message = format!("expected {expected}, found {found}");
        Err(GenError::Syntax { file: self.file.into(), line: self.line(), message })
    }

    fn is(&self, c: char) -> bool {
        self.peek() == Some(&Kind::Punct(c))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Kind::Ident(s)) if s == word)
    }

    fn accept(&mut self, c: char) -> bool {
        let found = self.is(c);
        self.at += usize::from(found);
        found
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, c: char) -> Result<(), GenError> {
        if self.accept(c) { Ok(()) } else { self.error(&format!("'{c}'")) }
    }

    fn expect_word(&mut self, word: &str) -> Result<(), GenError> {
        if self.accept_word(word) { Ok(()) } else { self.error(word) }
    }

    fn name(&mut self) -> Result<String, GenError> {
        let Some(Kind::Ident(name)) = self.peek() else { return self.error("a name") };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    fn value(&mut self) -> Result<Value, GenError> {
        let value = match self.peek() {
            Some(Kind::Number(n)) => Value::Number(*n),
            Some(Kind::Ident(name)) => Value::Name(name.clone()),
            _ => return self.error("a constant"),
        };
        self.at += 1;
        Ok(value)
    }

    /// The comment that ends right above `line`.
    fn doc_above(&self, line: usize) -> String {
        let above = self.comments.iter().find(|c| c.end + 1 == line && !self.token_on(c.start));
        above.map(|c| c.text.clone()).unwrap_or_default()
    }

    /// The comment that starts on `line`, behind its tokens, running on if the next lines hold only comment.
    fn doc_behind(&self, line: usize) -> String {
        let mut words = Vec::new();
        let mut line = line;
        while let Some(c) = self.comments.iter().find(|c| c.start == line) {
            words.push(c.text.as_str());
            line = c.end + 1;
            if self.token_on(line) {
                break;
            }
        }
        words.join(" ")
    }

    fn token_on(&self, line: usize) -> bool {
        self.tokens.binary_search_by_key(&line, |t| t.line).is_ok()
    }

    /// Documentation of a member whose first token is on `first` and whose last was just consumed.
    fn member_doc(&self, first: usize) -> String {
        let behind = self.doc_behind(self.last_line());
        if behind.is_empty() { self.doc_above(first) } else { behind }
    }

    fn define(&mut self, name: &str, body: Body, doc: String) {
        self.definitions.push(Definition { name: name.into(), body, doc });
    }

    fn definition(&mut self) -> Result<(), GenError> {
        let line = self.line();
        let above = self.doc_above(line);
        if self.accept_word("const") {
            let name = self.name()?;
            self.expect('=')?;
            let value = self.value()?;
            self.expect(';')?;
            let doc = self.member_doc(line);
            self.define(&name, Body::Const(value), doc);
            return Ok(());
        }
        if self.accept_word("typedef") {
            let declaration = self.declaration("")?;
            self.expect(';')?;
            let doc = self.member_doc(line);
            self.define(&declaration.name, Body::Typedef(declaration.shape), doc);
            return Ok(());
        }
        if self.accept_word("program") {
            return self.program(above);
        }
        for (word, body) in [
            ("enum", Self::enum_body as fn(&mut Self, &str) -> Result<Body, GenError>),
            ("struct", Self::struct_body),
            ("union", Self::union_body),
        ] {
            if self.accept_word(word) {
                let name = self.name()?;
                let body = body(self, &name)?;
                self.expect(';')?;
                self.define(&name, body, above);
                return Ok(());
            }
        }
        self.error("a definition")
    }

    fn enum_body(&mut self, _: &str) -> Result<Body, GenError> {
        self.expect('{')?;
        let mut values = Vec::new();
        while !self.accept('}') {
            let line = self.line();
            let name = self.name()?;
            self.expect('=')?;
            let value = self.value()?;
            if !self.is('}') {
                self.expect(',')?;
            }
            let doc = self.member_doc(line);
            values.push(Enumerator { name, value, doc });
        }
        Ok(Body::Enum(values))
    }

    fn struct_body(&mut self, parent: &str) -> Result<Body, GenError> {
        self.expect('{')?;
        let mut fields = Vec::new();
        while !self.accept('}') {
            let line = self.line();
            let mut field = self.declaration(parent)?;
            self.expect(';')?;
            field.doc = self.member_doc(line);
            if field.shape != Shape::Void {
                fields.push(field);
            }
        }
        Ok(Body::Struct(fields))
    }

    fn union_body(&mut self, parent: &str) -> Result<Body, GenError> {
        self.expect_word("switch")?;
        self.expect('(')?;
        let switch = self.type_specifier(parent, "switch")?;
        self.name()?;
        self.expect(')')?;
        self.expect('{')?;
        let mut arms = Vec::new();
        let mut default = None;
        while !self.accept('}') {
            let mut cases = Vec::new();
            let is_default = self.accept_word("default");
            if is_default {
                self.expect(':')?;
            } else {
                self.expect_word("case")?;
                cases.push(self.value()?);
                self.expect(':')?;
                while self.accept_word("case") {
                    cases.push(self.value()?);
                    self.expect(':')?;
                }
            }
            let line = self.line();
            let mut body = self.declaration(parent)?;
            self.expect(';')?;
            body.doc = self.member_doc(line);
            match is_default {
                true => default = Some(body),
                false => arms.push(Arm { cases, body }),
            }
        }
        Ok(Body::Union { switch, arms, default })
    }

    /// A declaration; types declared in it are defined under the name `parent_field`.
    fn declaration(&mut self, parent: &str) -> Result<Declaration, GenError> {
        let declare = |name, shape| Ok(Declaration { name, shape, doc: String::new() });
        if self.accept_word("void") {
            return declare(String::new(), Shape::Void);
        }
        if self.is_word("opaque") || self.is_word("string") {
            let string = self.is_word("string");
            self.at += 1;
            let name = self.name()?;
            if !string && self.accept('[') {
                let size = self.value()?;
                self.expect(']')?;
                return declare(name, Shape::OpaqueFixed(size));
            }
            let maximum = self.maximum()?;
            return declare(name, Shape::Opaque(maximum));
        }
        let specifier = self.type_specifier(parent, "")?;
        if self.accept('*') {
            let name = self.name()?;
            return declare(name, Shape::Optional(specifier));
        }
        let name = self.name()?;
        let specifier = self.rename_inner(specifier, parent, &name);
        if self.accept('[') {
            let size = self.value()?;
            self.expect(']')?;
            return declare(name, Shape::Array(specifier, size));
        }
        if self.is('<') {
            let maximum = self.maximum()?;
            return declare(name, Shape::List(specifier, maximum));
        }
        declare(name, Shape::Plain(specifier))
    }

    fn maximum(&mut self) -> Result<Option<Value>, GenError> {
        self.expect('<')?;
        if self.accept('>') {
            return Ok(None);
        }
        let value = self.value()?;
        self.expect('>')?;
        Ok(Some(value))
    }

    /// An inline type is parsed before the field that names it is known; give it its name now.
    fn rename_inner(&mut self, specifier: Type, parent: &str, field: &str) -> Type {
        let placeholder = inner_name(parent, "");
        if specifier != Type::Named(placeholder.clone()) {
            return specifier;
        }
        let name = if parent.is_empty() { field.to_owned() } else { inner_name(parent, field) };
        for d in &mut self.definitions {
            if d.name == placeholder {
                d.name.clone_from(&name);
            }
        }
        Type::Named(name)
    }

    fn type_specifier(&mut self, parent: &str, field: &str) -> Result<Type, GenError> {
        let word = self.name()?;
        let specifier = match word.as_str() {
            "unsigned" => {
                if self.accept_word("hyper") {
                    Type::Uhyper
                } else {
                    // RFC 4506 §4.2: `unsigned` alone is `unsigned int`.
                    let _ = self.accept_word("int") || self.accept_word("long");
                    Type::Uint
                }
            }
            "int" | "long" => Type::Int,
            "hyper" => Type::Hyper,
            "float" => Type::Float,
            "double" => Type::Double,
            "bool" => Type::Bool,
            "quadruple" => return self.error("a type that Rust has (quadruple it has not)"),
            "enum" | "struct" | "union" if self.is('{') || self.is_word("switch") => {
                let name = inner_name(parent, field);
                let body = match word.as_str() {
                    "enum" => self.enum_body(&name)?,
                    "struct" => self.struct_body(&name)?,
                    _ => self.union_body(&name)?,
                };
                self.define(&name, body, String::new());
                Type::Named(name)
            }
            // Old descriptions write `struct entry *next`.
            "enum" | "struct" | "union" => Type::Named(self.name()?),
            _ => Type::Named(word),
        };
        Ok(specifier)
    }

    fn program(&mut self, doc: String) -> Result<(), GenError> {
        let mut constants = Vec::new();
        let name = self.name()?;
        self.expect('{')?;
        while self.accept_word("version") {
            let version = self.name()?;
            let mut procedures = Vec::new();
            self.expect('{')?;
            while !self.accept('}') {
                procedures.push(self.procedure()?);
            }
            self.expect('=')?;
            constants.push((version, self.value()?));
            self.expect(';')?;
            constants.append(&mut procedures);
        }
        self.expect('}')?;
        self.expect('=')?;
        constants.insert(0, (name.clone(), self.value()?));
        self.expect(';')?;
        self.define(&name, Body::Program(constants), doc);
        Ok(())
    }

    /// `result NAME(argument, …) = n;` of which only name and number matter to the wire.
    fn procedure(&mut self) -> Result<(String, Value), GenError> {
        if !self.accept_word("void") {
            self.type_specifier("", "")?;
        }
        let name = self.name()?;
        self.expect('(')?;
        loop {
            if !self.accept_word("void") {
                self.type_specifier("", "")?;
            }
            if !self.accept(',') {
                break;
            }
        }
        self.expect(')')?;
        self.expect('=')?;
        let value = self.value()?;
        self.expect(';')?;
        Ok((name, value))
    }
}

fn inner_name(parent: &str, field: &str) -> String {
    format!("{parent}_{field}")
}
