//! Definitions with their names resolved, and what emission must know of a type: its least size on the
//! wire, which traits Rust can derive for it, whether it is a node of a linked list or contains itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::ast::{Body, Definition, Shape, Type, Value};
use crate::error::GenError;
use crate::lex::Number;

/// A type written by hand in Rust that descriptions may name.
#[derive(Clone, Copy, Debug)]
pub struct External {
    /// Name in descriptions and in Rust.
    pub name: &'static str,
    /// Fewest bytes on the wire.
    pub min_size: usize,
    /// Whether it is `Copy`, `Ord` and `Hash`.
    pub copy: bool,
}

/// What Rust can derive for a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// `Default`
    pub default: bool,
    /// `Copy`, and with it `Ord` and `Hash`: small values serve as keys
    pub copy: bool,
    /// `Eq`: no floating point inside
    pub eq: bool,
}

impl Traits {
    const ALL: Self = Self { default: true, copy: true, eq: true };

    fn and(self, other: Self) -> Self {
        Self {
            default: self.default && other.default,
            copy: self.copy && other.copy,
            eq: self.eq && other.eq,
        }
    }
}

/// All definitions one module may use.
#[derive(Debug, Default)]
pub struct Model {
    types: BTreeMap<String, Definition>,
    externals: BTreeMap<String, External>,
    constants: BTreeMap<String, (Number, Option<String>)>,
    recursive: BTreeSet<String>,
}

impl Model {
    /// Resolves `definitions` (in any order) and checks that every name means something, once.
    pub fn new(definitions: &[Definition], externals: &[External]) -> Result<Self, GenError> {
        let mut model = Self::default();
        for e in externals {
            model.externals.insert(e.name.into(), *e);
        }
        model.collect_constants(definitions)?;
        for d in definitions {
            if matches!(d.body, Body::Const(_) | Body::Program(_)) {
                continue;
            }
            if model.externals.contains_key(&d.name)
                || model.types.insert(d.name.clone(), d.clone()).is_some()
            {
                return Err(GenError::Duplicate(d.name.clone()));
            }
        }
        for d in definitions {
            for shape in shapes(&d.body) {
                model.check(shape)?;
            }
            if let Body::Union { switch, .. } = &d.body {
                model.check_type(switch)?;
            }
        }
        let names: Vec<_> = model.types.keys().cloned().collect();
        model.recursive = names.into_iter().filter(|n| model.contains_itself(n)).collect();
        Ok(model)
    }

    fn collect_constants(&mut self, definitions: &[Definition]) -> Result<(), GenError> {
        let mut pending: Vec<(&str, &Value, Option<&str>)> = Vec::new();
        for d in definitions {
            match &d.body {
                Body::Const(value) => pending.push((&d.name, value, None)),
                Body::Enum(values) => {
                    pending.extend(values.iter().map(|e| (e.name.as_str(), &e.value, Some(d.name.as_str()))));
                }
                Body::Program(values) => {
                    pending.extend(values.iter().map(|(name, value)| (name.as_str(), value, None)));
                }
                _ => {}
            }
        }
        // Constants may be named before they are defined: repeat until nothing changes.
        while !pending.is_empty() {
            let before = pending.len();
            let mut unresolved = Vec::new();
            for (name, value, owner) in pending {
                let Ok(number) = self.number(value) else {
                    unresolved.push((name, value, owner));
                    continue;
                };
                if self.constants.insert(name.into(), (number, owner.map(Into::into))).is_some() {
                    return Err(GenError::Duplicate(name.into()));
                }
            }
            if unresolved.len() == before {
                return unresolved
                    .first()
                    .map_or(Ok(()), |(name, ..)| Err(GenError::Undefined((*name).into())));
            }
            pending = unresolved;
        }
        Ok(())
    }

    /// The number that a constant stands for.
    pub fn number(&self, value: &Value) -> Result<Number, GenError> {
        match value {
            Value::Number(n) => Ok(*n),
            Value::Name(name) => {
                let found = self.constants.get(name).map(|(number, _)| *number);
                found.or(boolean(name)).ok_or_else(|| GenError::Undefined(name.clone()))
            }
        }
    }

    /// A constant as a length.
    pub fn size(&self, value: &Value) -> Result<u32, GenError> {
        let number = self.number(value)?;
        u32::try_from(number.value)
            .map_err(|_| GenError::Unsupported(format!("{} is not a length", number.value)))
    }

    /// The enum that a constant belongs to.
    pub fn owner(&self, constant: &str) -> Option<&str> {
        self.constants.get(constant).and_then(|(_, owner)| owner.as_deref())
    }

    /// A type's definition; `None` for externals.
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.types.get(name)
    }

    /// Whether `name` contains itself other than as the link of a list.
    pub fn is_recursive(&self, name: &str) -> bool {
        self.recursive.contains(name)
    }

    /// The shape that a typedef stands for; `None` when `name` is a Rust type of its own.
    pub fn alias(&self, name: &str) -> Option<&Shape> {
        match &self.types.get(name)?.body {
            Body::Typedef(shape) if !is_newtype(name, shape) => Some(shape),
            _ => None,
        }
    }

    /// `T` with typedefs followed as long as they only rename.
    pub fn resolve<'a>(&'a self, t: &'a Type) -> &'a Type {
        match t {
            Type::Named(name) => match self.alias(name) {
                Some(Shape::Plain(inner)) => self.resolve(inner),
                _ => t,
            },
            _ => t,
        }
    }

    /// Whether `name` is a struct that ends in a link to the next of its kind.
    pub fn is_list_node(&self, name: &str) -> bool {
        self.types.get(name).is_some_and(|d| match &d.body {
            Body::Struct(fields) => {
                // Two links make a tree, not a list.
                fields.last().is_some_and(|f| links_to(&f.shape, name))
                    && fields.iter().filter(|f| links_to(&f.shape, name)).count() == 1
            }
            _ => false,
        })
    }

    /// Whether `shape` is the link of list node `name` to its successor.
    pub fn is_link(&self, shape: &Shape, name: &str) -> bool {
        links_to(shape, name) && self.is_list_node(name)
    }

    fn check(&self, shape: &Shape) -> Result<(), GenError> {
        match shape {
            Shape::Void => Ok(()),
            Shape::Plain(t) | Shape::Optional(t) => self.check_type(t),
            Shape::Array(t, n) => self.size(n).and_then(|_| self.check_type(t)),
            Shape::List(t, n) => {
                n.iter().try_for_each(|n| self.size(n).map(drop)).and_then(|()| self.check_type(t))
            }
            Shape::OpaqueFixed(n) => self.size(n).map(drop),
            Shape::Opaque(n) => n.iter().try_for_each(|n| self.size(n).map(drop)),
        }
    }

    fn check_type(&self, t: &Type) -> Result<(), GenError> {
        match t {
            Type::Named(name) if !self.types.contains_key(name) && !self.externals.contains_key(name) => {
                Err(GenError::Undefined(name.clone()))
            }
            _ => Ok(()),
        }
    }

    fn contains_itself(&self, name: &str) -> bool {
        let mut seen = BTreeSet::new();
        let mut todo = vec![name];
        while let Some(next) = todo.pop() {
            let Some(definition) = self.types.get(next) else { continue };
            for shape in shapes(&definition.body) {
                if let Some(Type::Named(inner)) = shape_type(shape)
                    && !self.is_link(shape, next)
                {
                    if inner == name {
                        return true;
                    }
                    if seen.insert(inner.as_str()) {
                        todo.push(inner);
                    }
                }
            }
        }
        false
    }

    /// Fewest bytes a value of this shape takes.
    pub fn min_size(&self, shape: &Shape) -> Result<usize, GenError> {
        Ok(match shape {
            Shape::Void => 0,
            Shape::Plain(t) => self.type_min_size(t)?,
            Shape::Array(t, n) => self.type_min_size(t)?.saturating_mul(self.size(n)? as usize),
            Shape::OpaqueFixed(n) => (self.size(n)? as usize).next_multiple_of(4),
            Shape::List(..) | Shape::Optional(_) | Shape::Opaque(_) => 4,
        })
    }

    /// Fewest bytes a value of this type takes.
    pub fn type_min_size(&self, t: &Type) -> Result<usize, GenError> {
        Ok(match t {
            Type::Int | Type::Uint | Type::Float | Type::Bool => 4,
            Type::Hyper | Type::Uhyper | Type::Double => 8,
            Type::Named(name) => {
                if let Some(e) = self.externals.get(name) {
                    return Ok(e.min_size);
                }
                let definition = self.types.get(name).ok_or_else(|| GenError::Undefined(name.clone()))?;
                self.body_min_size(name, &definition.body)?
            }
        })
    }

    fn body_min_size(&self, name: &str, body: &Body) -> Result<usize, GenError> {
        Ok(match body {
            Body::Typedef(shape) => self.min_size(shape)?,
            Body::Struct(fields) => {
                let own = fields.iter().map(|f| &f.shape).filter(|s| !self.is_link(s, name));
                own.map(|s| self.min_size(s)).sum::<Result<usize, _>>()?
            }
            Body::Union { switch, arms, default } => {
                let bodies = arms.iter().map(|a| &a.body).chain(default);
                let sizes = bodies.map(|b| self.min_size(&b.shape)).collect::<Result<Vec<_>, _>>()?;
                self.type_min_size(switch)? + sizes.into_iter().min().unwrap_or(0)
            }
            Body::Enum(_) | Body::Const(_) | Body::Program(_) => 4,
        })
    }

    /// What can be derived for a declaration's Rust type.
    pub fn shape_traits(&self, shape: &Shape) -> Result<Traits, GenError> {
        Ok(match shape {
            Shape::Void => Traits::ALL,
            Shape::Plain(t) => self.type_traits(t)?,
            // The standard library has Default for arrays of at most 32 items.
            Shape::Array(t, n) => {
                self.type_traits(t)?.and(Traits { default: self.size(n)? <= 32, ..Traits::ALL })
            }
            Shape::OpaqueFixed(n) => Traits { default: self.size(n)? <= 32, ..Traits::ALL },
            Shape::List(t, _) | Shape::Optional(t) => {
                // A value that contains itself does so behind a pointer.
                let eq = match t {
                    Type::Named(name) if self.is_recursive(name) => true,
                    _ => self.type_traits(t)?.eq,
                };
                Traits { default: true, copy: false, eq }
            }
            Shape::Opaque(_) => Traits { copy: false, ..Traits::ALL },
        })
    }

    fn type_traits(&self, t: &Type) -> Result<Traits, GenError> {
        match t {
            Type::Float | Type::Double => Ok(Traits { eq: false, copy: false, ..Traits::ALL }),
            Type::Named(name) if self.externals.contains_key(name) => {
                Ok(Traits { copy: false, ..Traits::ALL })
            }
            Type::Named(name) => {
                let definition = self.types.get(name).ok_or_else(|| GenError::Undefined(name.clone()))?;
                self.traits(definition)
            }
            _ => Ok(Traits::ALL),
        }
    }

    /// What can be derived for a definition.
    pub fn traits(&self, definition: &Definition) -> Result<Traits, GenError> {
        let mut traits = Traits::ALL;
        for shape in shapes(&definition.body) {
            if !self.is_link(shape, &definition.name) {
                traits = traits.and(self.shape_traits(shape)?);
            }
        }
        traits.default &= !matches!(definition.body, Body::Union { .. });
        Ok(traits)
    }
}

/// Opaques that identify something become types of their own, so that one cannot pass for another; names,
/// strings and payloads stay `Bytes`.
pub fn is_newtype(name: &str, shape: &Shape) -> bool {
    match shape {
        Shape::OpaqueFixed(_) => true,
        Shape::Opaque(Some(_)) => name.contains("_fh"),
        _ => false,
    }
}

/// TRUE and FALSE, RFC 4506 §4.4.
fn boolean(name: &str) -> Option<Number> {
    match name {
        "FALSE" => Some(Number { value: 0, hex: false }),
        "TRUE" => Some(Number { value: 1, hex: false }),
        _ => None,
    }
}

/// Whether `shape` is an optional `name`.
fn links_to(shape: &Shape, name: &str) -> bool {
    matches!(shape, Shape::Optional(Type::Named(t)) if t == name)
}

/// The type that a shape holds, if it names one.
fn shape_type(shape: &Shape) -> Option<&Type> {
    match shape {
        Shape::Plain(t) | Shape::Array(t, _) | Shape::List(t, _) | Shape::Optional(t) => Some(t),
        Shape::Void | Shape::OpaqueFixed(_) | Shape::Opaque(_) => None,
    }
}

fn shapes(body: &Body) -> Vec<&Shape> {
    match body {
        Body::Struct(fields) => fields.iter().map(|f| &f.shape).collect(),
        Body::Union { arms, default, .. } => {
            arms.iter().map(|a| &a.body).chain(default).map(|d| &d.shape).collect()
        }
        Body::Typedef(shape) => vec![shape],
        Body::Enum(_) | Body::Const(_) | Body::Program(_) => Vec::new(),
    }
}
