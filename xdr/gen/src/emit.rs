//! Definitions to Rust. One definition gives one item and its codec; order follows the description.

use std::fmt::Write as _;

use crate::ast::{Arm, Body, Declaration, Definition, Enumerator, Shape, Type, Value};
use crate::error::GenError;
use crate::lex::Number;
use crate::model::{Model, Traits, is_newtype};

/// Rust for `definitions`, without a file header and not yet formatted.
pub fn emit<'a>(
    model: &Model,
    definitions: impl IntoIterator<Item = &'a Definition>,
) -> Result<String, GenError> {
    let mut emitter = Emitter { model, out: String::new() };
    let mut after_constant = false;
    for d in definitions {
        let constant = matches!(d.body, Body::Const(_));
        if after_constant && !constant {
            emitter.line("");
        }
        after_constant = constant;
        emitter.definition(d)?;
    }
    Ok(emitter.out)
}

/// How an expression in generated code stands for a value.
#[derive(Clone, Copy)]
struct Place<'a> {
    text: &'a str,
    by_reference: bool,
}

impl Place<'_> {
    fn value(self) -> String {
        if self.by_reference { format!("*{}", self.text) } else { self.text.into() }
    }

    fn reference(self) -> String {
        if self.by_reference { self.text.into() } else { format!("&{}", self.text) }
    }
}

const ITEM: Place<'static> = Place { text: "v", by_reference: true };

struct Emitter<'a> {
    model: &'a Model,
    out: String,
}

impl Emitter<'_> {
    fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn doc(&mut self, indent: &str, text: &str) {
        // Square and angle brackets in comments are ranges and prototypes, never links or markup.
        let text = text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]").replace('<', "\\<");
        let mut line = String::new();
        for word in text.split_whitespace() {
            if line.len() + word.len() > 90 {
                let _ = writeln!(self.out, "{indent}///{line}");
                line.clear();
            }
            line.push(' ');
            line.push_str(word);
        }
        if !line.is_empty() {
            let _ = writeln!(self.out, "{indent}///{line}");
        }
    }

    fn definition(&mut self, d: &Definition) -> Result<(), GenError> {
        match &d.body {
            Body::Const(value) => self.constant(&d.name, value, &d.doc),
            Body::Program(values) => {
                values.iter().try_for_each(|(name, value)| self.constant(name, value, ""))
            }
            Body::Typedef(shape) if is_newtype(&d.name, shape) => self.newtype(d, shape),
            Body::Typedef(shape) => {
                let rust = self.rust_shape(shape)?;
                self.doc("", &d.doc);
                self.line(&format!("pub type {} = {rust};\n", ident(&d.name)));
                Ok(())
            }
            Body::Enum(values) => self.enumeration(d, values),
            Body::Struct(fields) => self.structure(d, fields),
            Body::Union { switch, arms, default } => self.union(d, switch, arms, default.as_ref()),
        }
    }

    fn constant(&mut self, name: &str, value: &Value, doc: &str) -> Result<(), GenError> {
        let number = self.model.number(value)?;
        self.doc("", doc);
        let (rust_type, text) = (integer_type(number), literal(number));
        self.line(&format!("pub const {}: {rust_type} = {text};", ident(name)));
        Ok(())
    }

    fn derives(traits: Traits, also: &str) -> String {
        let mut derives = String::from(if traits.copy { "Clone, Copy, " } else { "Clone, " });
        derives.push_str(also);
        derives.push_str("PartialEq");
        if traits.eq {
            derives.push_str(", Eq");
        }
        if traits.copy {
            derives.push_str(", PartialOrd, Ord, Hash");
        }
        if traits.default {
            derives.push_str(", Default");
        }
        format!("#[derive({derives})]")
    }

    fn newtype(&mut self, d: &Definition, shape: &Shape) -> Result<(), GenError> {
        let name = ident(&d.name);
        let rust = self.rust_shape(shape)?;
        let min = self.model.min_size(shape)?;
        let traits = self.model.shape_traits(shape)?;
        // Identifiers serve as keys, whether they are Copy or not.
        let keys = if traits.copy { "Debug, " } else { "Debug, PartialOrd, Ord, Hash, " };
        let derives = Self::derives(traits, keys);
        let (encode, decode) =
            (self.encode(shape, Place { text: "self.0", by_reference: false })?, self.decode(shape)?);
        self.doc("", &d.doc);
        self.line(&derives);
        self.line(&format!("pub struct {name}(pub {rust});\n"));
        self.codec(&name, min, &format!("{encode};"), &format!("Ok(Self({decode}?))"));
        Ok(())
    }

    fn codec(&mut self, name: &str, min: usize, encode: &str, decode: &str) {
        let writer = if encode.is_empty() { "_" } else { "w" };
        let reader = if decode.contains("(r") || decode.contains("r.") { "r" } else { "_" };
        let _ = write!(
            self.out,
            "impl Encode for {name} {{\nfn encode(&self, {writer}: &mut Writer) {{\n{encode}\n}}\n}}\n\n\
             impl Decode for {name} {{\nconst MIN_SIZE: usize = {min};\n\n\
             fn decode({reader}: &mut Reader) -> Result<Self, DecodeError> {{\n{decode}\n}}\n}}\n\n"
        );
    }

    fn enumeration(&mut self, d: &Definition, values: &[Enumerator]) -> Result<(), GenError> {
        let name = ident(&d.name);
        let numbers: Vec<_> = values.iter().map(|e| self.model.number(&e.value)).collect::<Result<_, _>>()?;
        let inner = self.enum_type(values)?;
        self.doc("", &d.doc);
        self.line("#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]");
        self.line(&format!("pub struct {name}(pub {inner});\n"));
        self.line(&format!("impl {name} {{"));
        for (e, n) in values.iter().zip(&numbers) {
            self.doc("    ", &e.doc);
            let constant = ident(&e.name);
            self.line(&format!("pub const {constant}: Self = Self({});", literal(*n)));
        }
        self.line("\n/// Name of a value that the description knows.");
        self.line("pub fn name(self) -> Option<&'static str> {\nSome(match self {");
        let mut seen = Vec::new();
        for (e, n) in values.iter().zip(&numbers) {
            if !seen.contains(&n.value) {
                seen.push(n.value);
                self.line(&format!("Self::{} => \"{}\",", ident(&e.name), e.name));
            }
        }
        self.line("_ => return None,\n})\n}\n}\n");
        self.line(&format!("crate::codec::wire_enum!({name}, {inner}, \"{}\");\n", d.name));
        Ok(())
    }

    /// Enums are signed (RFC 4506 §4.3); those without negative values are handier unsigned.
    fn enum_type(&self, values: &[Enumerator]) -> Result<&'static str, GenError> {
        for e in values {
            let n = self.model.number(&e.value)?;
            match integer_type(n) {
                "u32" => {}
                "i32" => return Ok("i32"),
                _ => return Err(GenError::Unsupported(format!("{} does not fit 32 bits", e.name))),
            }
        }
        Ok("u32")
    }

    fn structure(&mut self, d: &Definition, fields: &[Declaration]) -> Result<(), GenError> {
        let name = ident(&d.name);
        let traits = self.model.traits(d)?;
        let min = self.model.type_min_size(&Type::Named(d.name.clone()))?;
        let fields: Vec<_> = fields.iter().filter(|f| !self.model.is_link(&f.shape, &d.name)).collect();
        self.doc("", &d.doc);
        self.line(&Self::derives(traits, "Debug, "));
        self.line(&format!("pub struct {name} {{"));
        let (mut encode, mut decode) = (Vec::new(), String::from("Ok(Self {"));
        for f in &fields {
            let (field, rust) = (ident(&f.name), self.rust_shape(&f.shape)?);
            self.doc("    ", &f.doc);
            self.line(&format!("pub {field}: {rust},"));
            let text = format!("self.{field}");
            encode.push(self.encode(&f.shape, Place { text: &text, by_reference: false })? + ";");
            let _ = write!(decode, "{field}: {}?,", self.decode(&f.shape)?);
        }
        self.line("}\n");
        decode.push_str("})");
        self.codec(&name, min, &encode.join("\n"), &decode);
        Ok(())
    }

    fn union(
        &mut self,
        d: &Definition,
        switch: &Type,
        arms: &[Arm],
        default: Option<&Declaration>,
    ) -> Result<(), GenError> {
        let name = ident(&d.name);
        let traits = self.model.traits(d)?;
        let min = self.model.type_min_size(&Type::Named(d.name.clone()))?;
        let disc = self.rust_type(switch);
        let is_bool = *self.model.resolve(switch) == Type::Bool;
        let mut variants = String::new();
        let (mut discriminant, mut encode, mut decode) = (String::new(), String::new(), String::new());
        let mut cases = 0;
        let (arms, default) =
            if is_bool { Self::both_truths(arms, default) } else { (arms.to_vec(), default) };
        let arms = &arms;
        for arm in arms {
            for case in &arm.cases {
                cases += 1;
                let variant = self.variant(case)?;
                let pattern = self.case_pattern(switch, case)?;
                self.member_doc(&mut variants, &arm.body.doc);
                if arm.body.shape == Shape::Void {
                    let _ = writeln!(variants, "{variant},");
                    let _ = writeln!(discriminant, "Self::{variant} => {pattern},");
                    let _ = writeln!(encode, "Self::{variant} => {{}}");
                    let _ = writeln!(decode, "{pattern} => Ok(Self::{variant}),");
                    continue;
                }
                let _ = writeln!(variants, "{variant}({}),", self.rust_shape(&arm.body.shape)?);
                let _ = writeln!(discriminant, "Self::{variant}(_) => {pattern},");
                let _ = writeln!(encode, "Self::{variant}(v) => {},", self.encode(&arm.body.shape, ITEM)?);
                let _ =
                    writeln!(decode, "{pattern} => Ok(Self::{variant}({}?)),", self.decode(&arm.body.shape)?);
            }
        }
        match default {
            Some(body) if body.shape == Shape::Void => {
                let _ = writeln!(variants, "/// Any other discriminant; no body.\nDefault({disc}),");
                discriminant.push_str("Self::Default(other) => *other,");
                encode.push_str("Self::Default(_) => {}");
                decode.push_str("other => Ok(Self::Default(other)),");
            }
            Some(body) => {
                let rust = self.rust_shape(&body.shape)?;
                let _ = writeln!(variants, "/// Any other discriminant.\nDefault({disc}, {rust}),");
                discriminant.push_str("Self::Default(other, _) => *other,");
                let _ = write!(encode, "Self::Default(_, v) => {},", self.encode(&body.shape, ITEM)?);
                let _ = write!(decode, "other => Ok(Self::Default(other, {}?)),", self.decode(&body.shape)?);
            }
            None if is_bool && cases == 2 => {}
            None => {
                let value = self.discriminant_number(switch, is_bool)?;
                let _ = write!(
                    decode,
                    "other => Err(DecodeError::BadDiscriminant {{ union: \"{}\", value: {value} }}),",
                    d.name
                );
            }
        }
        let (write, read) = (
            self.encode(
                &Shape::Plain(switch.clone()),
                Place { text: "self.discriminant()", by_reference: false },
            )?,
            self.decode(&Shape::Plain(switch.clone()))?,
        );
        self.doc("", &d.doc);
        self.line(&Self::derives(traits, "Debug, "));
        self.line(&format!("pub enum {name} {{\n{variants}}}\n"));
        self.line(&format!(
            "impl {name} {{\n/// The discriminant that goes in front on the wire.\n\
             pub fn discriminant(&self) -> {disc} {{\nmatch self {{\n{discriminant}\n}}\n}}\n}}\n"
        ));
        let encode = format!("{write};\nmatch self {{\n{encode}\n}}");
        let decode = format!("match {read}? {{\n{decode}\n}}");
        self.codec(&name, min, &encode, &decode);
        if is_bool {
            self.option_conversions(&name, arms)?;
        }
        Ok(())
    }

    /// A bool has two values: `default:` next to one of them means the other.
    fn both_truths<'d>(
        arms: &[Arm],
        default: Option<&'d Declaration>,
    ) -> (Vec<Arm>, Option<&'d Declaration>) {
        let mut arms = arms.to_vec();
        let named = |truth: &str| arms.iter().any(|a| a.cases.contains(&Value::Name(truth.into())));
        let missing = match (named("TRUE"), named("FALSE")) {
            (true, false) => "FALSE",
            (false, true) => "TRUE",
            _ => return (arms, default),
        };
        if let Some(body) = default {
            arms.push(Arm { cases: vec![Value::Name(missing.into())], body: body.clone() });
        }
        (arms, None)
    }

    /// A union of TRUE with a body and FALSE without says what Rust calls an Option.
    fn option_conversions(&mut self, name: &str, arms: &[Arm]) -> Result<(), GenError> {
        let arm =
            |truth: &str| arms.iter().find(|a| a.cases == [Value::Name(truth.into())]).map(|a| &a.body.shape);
        let (Some(some), Some(Shape::Void)) = (arm("TRUE"), arm("FALSE")) else { return Ok(()) };
        if *some == Shape::Void {
            return Ok(());
        }
        let inner = self.rust_shape(some)?;
        let _ = write!(
            self.out,
            "impl From<Option<{inner}>> for {name} {{\nfn from(value: Option<{inner}>) -> Self {{\n\
             value.map_or(Self::FALSE, Self::TRUE)\n}}\n}}\n\n\
             impl From<{name}> for Option<{inner}> {{\nfn from(value: {name}) -> Self {{\nmatch value {{\n\
             {name}::TRUE(v) => Some(v),\n{name}::FALSE => None,\n}}\n}}\n}}\n\n"
        );
        Ok(())
    }

    fn member_doc(&self, out: &mut String, text: &str) {
        let mut part = Emitter { model: self.model, out: String::new() };
        part.doc("    ", text);
        out.push_str(&part.out);
    }

    /// Variant named after the constant of its case.
    fn variant(&self, case: &Value) -> Result<String, GenError> {
        Ok(match case {
            Value::Name(name) => ident(name),
            Value::Number(n) if n.value < 0 => format!("Minus{}", -n.value),
            Value::Number(n) => format!("Case{}", n.value),
        })
    }

    /// A case as a pattern and as a value of the discriminant's type.
    fn case_pattern(&self, switch: &Type, case: &Value) -> Result<String, GenError> {
        let number = self.model.number(case)?;
        match (self.model.resolve(switch), case) {
            (Type::Bool, _) => Ok((number.value != 0).to_string()),
            (Type::Named(name), Value::Name(constant)) if self.model.owner(constant) == Some(name) => {
                Ok(format!("{}::{}", ident(name), ident(constant)))
            }
            (Type::Named(name), _) => Ok(format!("{}({})", ident(name), literal(number))),
            // A named constant is unsigned in Rust and would not match an int: write its value.
            _ => Ok(literal(number)),
        }
    }

    fn discriminant_number(&self, switch: &Type, is_bool: bool) -> Result<String, GenError> {
        Ok(match self.model.resolve(switch) {
            _ if is_bool => "u32::from(other)".into(),
            Type::Uint => "other".into(),
            Type::Int => "other.cast_unsigned()".into(),
            Type::Named(name) => match self.model.get(name).map(|d| &d.body) {
                Some(Body::Enum(values)) if self.enum_type(values)? == "i32" => {
                    "other.0.cast_unsigned()".into()
                }
                Some(Body::Enum(_)) => "other.0".into(),
                _ => return Err(GenError::Unsupported(format!("{name} cannot select an arm"))),
            },
            other => return Err(GenError::Unsupported(format!("{other:?} cannot select an arm"))),
        })
    }

    fn rust_type(&self, t: &Type) -> String {
        match t {
            Type::Int => "i32".into(),
            Type::Uint => "u32".into(),
            Type::Hyper => "i64".into(),
            Type::Uhyper => "u64".into(),
            Type::Float => "f32".into(),
            Type::Double => "f64".into(),
            Type::Bool => "bool".into(),
            Type::Named(name) => ident(name),
        }
    }

    fn rust_shape(&self, shape: &Shape) -> Result<String, GenError> {
        Ok(match shape {
            Shape::Void => "()".into(),
            Shape::Plain(t) => self.rust_type(t),
            Shape::Array(t, n) => format!("[{}; {}]", self.rust_type(t), self.array_length(n)?),
            Shape::List(t, _) => format!("Vec<{}>", self.rust_type(t)),
            Shape::Optional(Type::Named(name)) if self.model.is_list_node(name) => {
                format!("Vec<{}>", ident(name))
            }
            Shape::Optional(Type::Named(name)) if self.model.is_recursive(name) => {
                format!("Option<Box<{}>>", ident(name))
            }
            Shape::Optional(t) => format!("Option<{}>", self.rust_type(t)),
            Shape::OpaqueFixed(n) => format!("[u8; {}]", self.array_length(n)?),
            Shape::Opaque(_) => "Bytes".into(),
        })
    }

    fn array_length(&self, n: &Value) -> Result<String, GenError> {
        Ok(match n {
            Value::Name(name) if self.model.owner(name).is_none() => format!("{} as usize", ident(name)),
            _ => self.model.size(n)?.to_string(),
        })
    }

    fn bound(&self, n: Option<&Value>) -> Result<String, GenError> {
        Ok(match n {
            None => "UNBOUNDED".into(),
            Some(Value::Name(name)) if self.model.owner(name).is_none() => ident(name),
            Some(n) => self.model.size(n)?.to_string(),
        })
    }

    /// An expression of type `Result<_, DecodeError>` that reads `shape` from `r`.
    fn decode(&self, shape: &Shape) -> Result<String, GenError> {
        Ok(match shape {
            Shape::Void => "Ok(())".into(),
            Shape::Plain(t) => return self.decode_type(t),
            Shape::Array(t, _) => format!("r.array_fixed({})", self.decoder(t)?),
            Shape::List(t, n) => {
                let (bound, min) = (self.bound(n.as_ref())?, self.model.type_min_size(t)?);
                format!("r.array({bound}, {min}, {})", self.decoder(t)?)
            }
            Shape::Optional(t @ Type::Named(name)) if self.model.is_list_node(name) => {
                format!("r.list({})", self.decoder(t)?)
            }
            Shape::Optional(t @ Type::Named(name)) if self.model.is_recursive(name) => {
                format!("r.optional(|r| Ok(Box::new({}?)))", self.decode_type(t)?)
            }
            Shape::Optional(t) => format!("r.optional({})", self.decoder(t)?),
            Shape::OpaqueFixed(_) => "r.opaque_array()".into(),
            Shape::Opaque(n) => format!("r.opaque({})", self.bound(n.as_ref())?),
        })
    }

    fn decode_type(&self, t: &Type) -> Result<String, GenError> {
        let Type::Named(name) = t else { return Ok(format!("r.{}()", self.rust_type(t))) };
        if let Some(shape) = self.model.alias(name) {
            return self.decode(shape);
        }
        Ok(match self.model.is_recursive(name) {
            true => format!("r.nested({}::decode)", ident(name)),
            false => format!("{}::decode(r)", ident(name)),
        })
    }

    /// A function that reads a `t`.
    fn decoder(&self, t: &Type) -> Result<String, GenError> {
        Ok(match t {
            Type::Named(name) if self.model.alias(name).is_none() && !self.model.is_recursive(name) => {
                format!("{}::decode", ident(name))
            }
            Type::Named(_) => format!("|r| {}", self.decode_type(t)?),
            _ => format!("Reader::{}", self.rust_type(t)),
        })
    }

    /// A statement, without its semicolon, that writes `place` to `w`.
    fn encode(&self, shape: &Shape, place: Place<'_>) -> Result<String, GenError> {
        Ok(match shape {
            Shape::Void => String::new(),
            Shape::Plain(t) => return self.encode_type(t, place),
            Shape::Array(t, _) => format!("w.array_fixed({}, {})", place.reference(), self.encoder(t)?),
            Shape::List(t, n) => {
                let bound = self.bound(n.as_ref())?;
                format!("w.array({}, {bound}, {})", place.reference(), self.encoder(t)?)
            }
            Shape::Optional(t @ Type::Named(name)) if self.model.is_list_node(name) => {
                format!("w.list({}, {})", place.reference(), self.encoder(t)?)
            }
            Shape::Optional(Type::Named(name)) if self.model.is_recursive(name) => {
                format!("w.optional({}.as_deref(), |w, v| v.encode(w))", place.text)
            }
            Shape::Optional(t) => format!("w.optional({}.as_ref(), {})", place.text, self.encoder(t)?),
            Shape::OpaqueFixed(_) => format!("w.opaque_fixed({})", place.reference()),
            Shape::Opaque(n) => format!("w.opaque({}, {})", place.reference(), self.bound(n.as_ref())?),
        })
    }

    fn encode_type(&self, t: &Type, place: Place<'_>) -> Result<String, GenError> {
        let Type::Named(name) = t else { return Ok(format!("w.{}({})", self.rust_type(t), place.value())) };
        match self.model.alias(name) {
            Some(shape) => self.encode(shape, place),
            None => Ok(format!("{}.encode(w)", place.text)),
        }
    }

    /// A function that writes a reference to a `t`.
    fn encoder(&self, t: &Type) -> Result<String, GenError> {
        Ok(format!("|w, v| {}", self.encode_type(t, ITEM)?))
    }
}

fn integer_type(n: Number) -> &'static str {
    match n.value {
        v if i128::from(i32::MIN) <= v && v < 0 => "i32",
        v if v < 0 => "i64",
        v if v <= i128::from(u32::MAX) => "u32",
        _ => "u64",
    }
}

fn literal(n: Number) -> String {
    match n.hex {
        true if n.value >= 0 => {
            let width = if n.value > i128::from(u32::MAX) { 16 } else { 8 };
            let digits = format!("{:0width$x}", n.value);
            // Digits in groups of four.
            let groups: Vec<_> = digits.as_bytes().chunks(4).map(String::from_utf8_lossy).collect();
            format!("0x{}", groups.join("_"))
        }
        _ => n.value.to_string(),
    }
}

/// `name`, or `name_` where Rust would read a keyword.
fn ident(name: &str) -> String {
    const KEYWORDS: &[&str] = &[
        "Self", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
        "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in",
        "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
        "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized",
        "use", "virtual", "where", "while", "yield",
    ];
    if KEYWORDS.contains(&name) { format!("{name}_") } else { name.to_owned() }
}
