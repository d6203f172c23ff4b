//! The grammar of RFC 4506 §6.3 and RFC 5531 §12 as data. Types declared inside other types have been
//! given names and stand as definitions of their own.

use crate::lex::Number;

/// A constant in the text: a number or the name of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Written out.
    Number(Number),
    /// Defined by `const` or by an enum.
    Name(String),
}

/// A type specifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// `int`
    Int,
    /// `unsigned int`
    Uint,
    /// `hyper`
    Hyper,
    /// `unsigned hyper`
    Uhyper,
    /// `float`
    Float,
    /// `double`
    Double,
    /// `bool`
    Bool,
    /// A defined type.
    Named(String),
}

/// What is declared of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `void`
    Void,
    /// `T name`
    Plain(Type),
    /// `T name[n]`
    Array(Type, Value),
    /// `T name<n>`; without `n` unbounded
    List(Type, Option<Value>),
    /// `T *name`
    Optional(Type),
    /// `opaque name[n]`
    OpaqueFixed(Value),
    /// `opaque name<n>` and `string name<n>`, which differ in nothing that this layer judges
    Opaque(Option<Value>),
}

/// A declaration: a field, an arm or a typedef.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Empty for `void`.
    pub name: String,
    /// What it holds.
    pub shape: Shape,
    /// Comment that goes with it.
    pub doc: String,
}

/// One constant of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enumerator {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Value,
    /// Comment that goes with it.
    pub doc: String,
}

/// An arm of a union with all the cases that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Constants that select it.
    pub cases: Vec<Value>,
    /// What it holds.
    pub body: Declaration,
}

/// The body of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// `const`
    Const(Value),
    /// `typedef`
    Typedef(Shape),
    /// `enum`
    Enum(Vec<Enumerator>),
    /// `struct`
    Struct(Vec<Declaration>),
    /// `union`
    Union {
        /// Type of the discriminant.
        switch: Type,
        /// Arms in order.
        arms: Vec<Arm>,
        /// The `default:` arm.
        default: Option<Declaration>,
    },
    /// `program`: constants of the program, its versions and procedures, in order
    Program(Vec<(String, Value)>),
}

/// A definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// What it defines.
    pub body: Body,
    /// The comment above it.
    pub doc: String,
}
