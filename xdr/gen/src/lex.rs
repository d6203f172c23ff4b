//! Text to tokens: identifiers, constants, punctuation. Comments are kept aside for the parser to turn
//! into documentation; `%` and `#` lines are skipped.

use crate::error::GenError;

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or keyword.
    Ident(String),
    /// A constant, RFC 4506 §6.2: decimal, hexadecimal or octal, with a sign; up to 64 bits.
    Number(Number),
    /// One of `{ } ( ) [ ] < > ; : , = *`.
    Punct(char),
}

/// A constant and how it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its value; every 64-bit integer of either sign fits.
    pub value: i128,
    /// Written in hexadecimal: bit masks stay readable in the output.
    pub hex: bool,
}

/// A token and its line, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub line: usize,
}

/// A comment: the lines it covers and its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// First line.
    pub start: usize,
    /// Last line.
    pub end: usize,
    /// Text without delimiters, one space between words.
    pub text: String,
}

/// Splits `text` into tokens and comments. `file` names it in errors.
pub fn lex(file: &str, text: &str) -> Result<(Vec<Token>, Vec<Comment>), GenError> {
    let mut lexer =
        Lexer { file, rest: text, line: 1, fresh_line: true, tokens: Vec::new(), comments: Vec::new() };
    while lexer.step()? {}
    Ok((lexer.tokens, lexer.comments))
}

struct Lexer<'a> {
    file: &'a str,
    rest: &'a str,
    line: usize,
    fresh_line: bool,
    tokens: Vec<Token>,
    comments: Vec<Comment>,
}

impl<'a> Lexer<'a> {
    fn error(&self, message: impl Into<String>) -> GenError {
        GenError::Syntax { file: self.file.into(), line: self.line, message: message.into() }
    }

    /// Takes `length` bytes off the front and counts their lines.
    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }

    fn push(&mut self, kind: Kind) {
        self.fresh_line = false;
        self.tokens.push(Token { kind, line: self.line });
    }

    fn step(&mut self) -> Result<bool, GenError> {
        let Some(c) = self.rest.chars().next() else { return Ok(false) };
        let end_of_line = self.rest.find('\n').unwrap_or(self.rest.len());
        match c {
            '\n' => {
                self.take(1);
                self.fresh_line = true;
            }
            c if c.is_whitespace() => {
                self.take(c.len_utf8());
            }
            '%' | '#' if self.fresh_line => {
                self.take(end_of_line);
            }
            '/' if self.rest.starts_with("//") => self.comment(end_of_line, 0),
            '/' if self.rest.starts_with("/*") => {
                let length = self.rest.find("*/").ok_or_else(|| self.error("a comment does not end"))?;
                self.comment(length + 2, 2);
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let word = self.word();
                self.push(Kind::Ident(word.to_owned()));
            }
            c if c.is_ascii_digit() || c == '-' => {
                let number = self.number()?;
                self.push(Kind::Number(number));
            }
            '{' | '}' | '(' | ')' | '[' | ']' | '<' | '>' | ';' | ':' | ',' | '=' | '*' => {
                self.take(1);
                self.push(Kind::Punct(c));
            }
            c => return Err(self.error(format!("unexpected character {c:?}"))),
        }
        Ok(true)
    }

    fn comment(&mut self, length: usize, tail: usize) {
        let start = self.line;
        let body = self.take(length);
        let body = body.get(2..body.len() - tail).unwrap_or_default();
        let words = body.lines().flat_map(|l| l.trim_start_matches([' ', '\t', '*']).split_whitespace());
        let text = words.collect::<Vec<_>>().join(" ");
        self.comments.push(Comment { start, end: self.line, text });
    }

    fn word(&mut self) -> &'a str {
        let length = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        self.take(length.unwrap_or(self.rest.len()))
    }

    fn number(&mut self) -> Result<Number, GenError> {
        let negative = self.rest.starts_with('-');
        if negative {
            self.take(1);
        }
        let word = self.word();
        let (digits, radix) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None if word.len() > 1 && word.starts_with('0') => (word, 8),
            None => (word, 10),
        };
        let digits = digits.trim_end_matches(['U', 'L', 'u', 'l']);
        let magnitude = u64::from_str_radix(digits, radix)
            .map_err(|_| self.error(format!("{word} is not a constant")))?;
        let value = i128::from(magnitude);
        let value = if negative { -value } else { value };
        if value < i128::from(i64::MIN) {
            return Err(self.error(format!("-{word} does not fit 64 bits")));
        }
        Ok(Number { value, hex: radix == 16 })
    }
}
