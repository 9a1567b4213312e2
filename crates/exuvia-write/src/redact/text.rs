//! Text that may be published: a type, so that a server's words cannot get into an event or a status as they are.

use std::fmt;
use std::ops::Deref;

use kube::api::DynamicObject;
use serde::Serialize;

use super::{cut, mask, only_causes, redact, shows_values};

/// Text that may go into failures, events, conditions and reports: it holds nothing of what objects hold.
///
/// The API server quotes the value that it refuses, and so do policies and webhooks (PITFALLS B27). Whatever is published
/// is read by more people than the object. So everything here that publishes demands this type, and a `String` does not
/// become one by itself:
///
/// | where the text comes from | how it is made |
/// |---|---|
/// | a server, a policy, a webhook | [`Redacted::from_server`], [`Redacted::from_error`]: values are masked |
/// | the same, about an object that can be read | then also [`without_values_of`](Self::without_values_of) |
/// | a literal in the source | `"…".into()` |
/// | a sentence of ours around safe parts | [`redacted!`](crate::redacted) |
/// | a sentence of ours that was put together elsewhere | [`Redacted::ours`]: its author answers for it |
///
/// ```
/// use exuvia_write::{Redacted, redacted};
///
/// let said = Redacted::from_server(r#"spec.token: Invalid value: "s3cret": too short"#);
/// assert_eq!(said, "spec.token: Invalid value: …: too short");
/// let text = redacted!("{} objects failed, the first one: {}", 3, said);
/// assert!(text.starts_with("3 objects failed") && !text.contains("s3cret"));
/// ```
///
/// ```compile_fail
/// let said = String::from("whatever the server said");
/// let published: exuvia_write::Redacted = said.into(); // a String may hold anything
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Redacted(String);

impl Redacted {
    /// What a server said, with every value masked that it refused; on one line, 512 bytes at most. See [`redact`].
    pub fn from_server(message: &str) -> Self {
        Self(redact(message))
    }

    /// As [`from_server`](Self::from_server): the text of an error that may repeat what a server said.
    pub fn from_error(error: &impl fmt::Display) -> Self {
        Self::from_server(&error.to_string())
    }

    /// Words of ours, in which everything that a server said is redacted already. Its author answers for it; prefer
    /// [`redacted!`](crate::redacted), which the compiler checks.
    pub fn ours(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The same without anything that this object holds, even if somebody quotes it in other words than the server does.
    /// `public` texts stay, such as the message of a rule in a CRD's schema.
    #[must_use]
    pub fn without_values_of(&self, object: &DynamicObject, public: &[String]) -> Self {
        if shows_values() {
            return self.clone();
        }
        Self(mask(&self.0, object, public))
    }

    /// Who refused, which field, by which rule, and nothing else: for where the object cannot be read, so that nothing
    /// tells what of the rest quotes it.
    #[must_use]
    pub fn only_causes(&self, public: &[String]) -> Self {
        if shows_values() {
            return self.clone();
        }
        Self(only_causes(&self.0, public))
    }

    /// At most so many bytes, whole characters.
    #[must_use]
    pub fn cut(&self, bytes: usize) -> Self {
        Self(cut(&self.0, bytes).to_owned())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, to be written.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl Deref for Redacted {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A literal: nobody else has put anything into it.
impl From<&'static str> for Redacted {
    fn from(literal: &'static str) -> Self {
        Self(literal.to_owned())
    }
}

impl From<&Self> for Redacted {
    fn from(text: &Self) -> Self {
        text.clone()
    }
}

impl PartialEq<str> for Redacted {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Redacted {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl PartialEq<Redacted> for String {
    fn eq(&self, other: &Redacted) -> bool {
        *self == other.0
    }
}

/// A name: of an object, a resource, a version, a manager, a field. Names are published; they are not values.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(pub &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What may be a part of [`redacted!`](crate::redacted): literals, numbers, [`Name`]s, and what is redacted.
pub trait SafePart: fmt::Display {}

impl SafePart for Redacted {}
impl SafePart for &Redacted {}
impl SafePart for Name<'_> {}
impl SafePart for &'static str {}
impl SafePart for u16 {}
impl SafePart for u32 {}
impl SafePart for u64 {}
impl SafePart for usize {}
impl SafePart for i32 {}
impl SafePart for i64 {}

/// For [`redacted!`](crate::redacted) alone.
#[doc(hidden)]
pub fn safe_part<T: SafePart>(part: T) -> T {
    part
}

/// Formats a [`Redacted`](crate::Redacted) from a literal and safe parts, which the compiler checks.
///
/// ```
/// use exuvia_write::{Name, redacted};
///
/// let (object, count) = (String::from("default/a"), 2_u64);
/// let text = redacted!("{} failed {} times", Name(&object), count);
/// assert_eq!(text, "default/a failed 2 times");
/// ```
///
/// A `String` is not a safe part, and neither is a variable that the literal names:
///
/// ```compile_fail
/// let said = String::from("whatever the server said");
/// exuvia_write::redacted!("refused: {}", said);
/// ```
///
/// ```compile_fail
/// let said = String::from("whatever the server said");
/// exuvia_write::redacted!("refused: {said}");
/// ```
#[macro_export]
macro_rules! redacted {
    ($format:literal $(, $part:expr)* $(,)?) => {
        // `concat!` keeps the literal from naming variables.
        $crate::Redacted::ours(::std::format!(::std::concat!($format) $(, $crate::safe_part($part))*))
    };
}
