//! Tokens, and the annotations by which a target says who applied it.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::{Names, StampOn};

/// Digits at most, so that every epoch fits a signed 64-bit number, as policies count.
const MAX_EPOCH_DIGITS: usize = 18;

/// Whose target it is, and of which epoch: `<owner uid>/<epoch>`.
///
/// The epoch is issued by the operator ([`issue`]): one more whenever what it renders changes. Epochs of one owner can be
/// compared; those of two owners cannot, whatever their names.
///
/// ```
/// use exuvia_rollout::Token;
///
/// let token: Token = "0a1b2c3d/7".parse()?;
/// assert_eq!((token.uid.as_str(), token.epoch), ("0a1b2c3d", 7));
/// assert_eq!(token.to_string(), "0a1b2c3d/7");
/// assert!("7".parse::<Token>().is_err());
/// # Ok::<(), exuvia_rollout::InvalidToken>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    /// The uid of the owner.
    pub uid: String,
    /// Which of its states, from 1.
    pub epoch: u64,
}

/// Not a token. The text itself is not kept: anyone may have written it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid token: expected <owner uid>/<epoch>")]
pub struct InvalidToken;

impl Token {
    /// The token of an owner's epoch.
    pub fn new(uid: impl Into<String>, epoch: u64) -> Self {
        Self {
            uid: uid.into(),
            epoch,
        }
    }

    /// The value of [`FENCE_ENV`](crate::names::FENCE_ENV): unset and empty mean that the pod has no token.
    pub fn from_env(value: Option<&str>) -> Result<Option<Self>, InvalidToken> {
        value.filter(|text| !text.is_empty()).map(str::parse).transpose()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uid, self.epoch)
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let (uid, epoch) = text.split_once('/').ok_or(InvalidToken)?;
        let is_number = epoch.bytes().all(|byte| byte.is_ascii_digit());
        if uid.is_empty() || !is_number || epoch.len() > MAX_EPOCH_DIGITS {
            return Err(InvalidToken);
        }
        let epoch = epoch.parse().map_err(|_| InvalidToken)?;
        Ok(Self::new(uid, epoch))
    }
}

/// What is put on an object. Each that is there replaces what anybody else wanted under that name.
///
/// ```
/// use exuvia_rollout::{Names, Stamps, Token};
/// use serde_json::json;
///
/// let mut set = json!({"metadata": {"name": "till", "annotations": {"exuvia.dev/fence": "mine!"}}});
/// let stamps = Stamps { token: Some(Token::new("0a1b", 7)), ..Stamps::default() };
/// stamps.put_on(&mut set, &Names::default());
/// assert_eq!(set["metadata"]["annotations"]["exuvia.dev/fence"], "0a1b/7");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Whose, and of which epoch.
    pub token: Option<Token>,
    /// The owner's `metadata.generation`: for people, and for runners with the compat gate.
    pub generation: Option<i64>,
    /// The hash of the run config.
    pub config_hash: Option<String>,
    /// The hash of the intent.
    pub intent_hash: Option<String>,
    /// The hash by which the operator issues epochs.
    pub template_hash: Option<String>,
}

impl Stamps {
    /// The annotations, by name. A stamp for which `names` has no name is left out.
    pub fn annotations(&self, names: &Names) -> Vec<(String, String)> {
        let pairs = [
            (
                names.fence_annotation.as_ref(),
                self.token.as_ref().map(ToString::to_string),
            ),
            (
                Some(&names.generation_annotation),
                self.generation.map(|number| number.to_string()),
            ),
            (Some(&names.config_hash_annotation), self.config_hash.clone()),
            (names.intent_hash_annotation.as_ref(), self.intent_hash.clone()),
            (
                names.template_hash_annotation.as_ref(),
                self.template_hash.clone(),
            ),
        ];
        let known = pairs
            .into_iter()
            .filter_map(|(name, value)| Some((name?.to_string(), value?)));
        known.collect()
    }

    /// Puts them where `names` wants them: on the object, or on its pod template.
    pub fn put_on(&self, object: &mut Value, names: &Names) {
        match names.stamp_on {
            StampOn::Object => self.put_on_object(object, names),
            StampOn::PodTemplate => self.put_on_template(object, names),
        }
    }

    /// Puts them into `metadata.annotations`.
    pub fn put_on_object(&self, object: &mut Value, names: &Names) {
        self.put(object, &["metadata", "annotations"], names);
    }

    /// Puts them into `spec.template.metadata.annotations`: so the operator stamps the Deployment of the helper pods, which read
    /// them by the downward API.
    pub fn put_on_template(&self, object: &mut Value, names: &Names) {
        self.put(object, &["spec", "template", "metadata", "annotations"], names);
    }

    fn put(&self, object: &mut Value, path: &[&str], names: &Names) {
        let annotations = self.annotations(names);
        if annotations.is_empty() {
            return;
        }
        let mut at = object;
        for member in path {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[*member];
        }
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        for (name, value) in annotations {
            at[name] = Value::from(value);
        }
    }
}

/// A stamp as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stamp<T> {
    /// The object has no such stamp, or an empty one.
    #[default]
    Absent,
    /// There is something that nobody can read.
    Unparsable,
    /// There it is.
    Found(T),
}

impl<T> Stamp<T> {
    /// The stamp, if it can be read.
    pub fn found(&self) -> Option<&T> {
        match self {
            Self::Found(stamp) => Some(stamp),
            _ => None,
        }
    }
}

/// The stamps of a live object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundStamps {
    /// Whose, and of which epoch.
    pub token: Stamp<Token>,
    /// The owner's `metadata.generation`.
    pub generation: Stamp<i64>,
    /// The hash of the run config.
    pub config_hash: Option<String>,
    /// The hash of the intent.
    pub intent_hash: Option<String>,
    /// The hash by which the operator issues epochs.
    pub template_hash: Option<String>,
}

impl FoundStamps {
    /// The stamps of an object, from where `names` has them.
    pub fn read(object: &Value, names: &Names) -> Self {
        match names.stamp_on {
            StampOn::Object => Self::of_object(object, names),
            StampOn::PodTemplate => Self::of_template(object, names),
        }
    }

    /// The stamps in `metadata.annotations`.
    pub fn of_object(object: &Value, names: &Names) -> Self {
        Self::in_annotations(object.pointer("/metadata/annotations"), names)
    }

    /// The stamps in `spec.template.metadata.annotations`.
    pub fn of_template(object: &Value, names: &Names) -> Self {
        Self::in_annotations(object.pointer("/spec/template/metadata/annotations"), names)
    }

    fn in_annotations(annotations: Option<&Value>, names: &Names) -> Self {
        let text = |name: &str| {
            let value = annotations?.get(name)?.as_str()?;
            (!value.is_empty()).then(|| value.to_owned())
        };
        let optional = |name: Option<&std::borrow::Cow<'static, str>>| text(name?);
        Self {
            token: parsed(optional(names.fence_annotation.as_ref())),
            generation: parsed(text(&names.generation_annotation)),
            config_hash: text(&names.config_hash_annotation),
            intent_hash: optional(names.intent_hash_annotation.as_ref()),
            template_hash: optional(names.template_hash_annotation.as_ref()),
        }
    }
}

fn parsed<T: FromStr>(text: Option<String>) -> Stamp<T> {
    match text {
        None => Stamp::Absent,
        Some(text) => text.parse().map_or(Stamp::Unparsable, Stamp::Found),
    }
}

/// The token for what the operator is about to render: one epoch more whenever `template_hash` is another one.
///
/// `known` are the stamps of all that the operator can see: of its Deployment's template and of the target. The highest epoch
/// of this owner counts, so that a Deployment that somebody deleted does not make epochs start over below the target's,
/// which would freeze every new pod.
///
/// ```
/// use exuvia_rollout::{FoundStamps, Stamp, Token, issue};
///
/// assert_eq!(issue("0a1b", "hash-a", &[]).epoch, 1);
/// let known = FoundStamps {
///     token: Stamp::Found(Token::new("0a1b", 7)),
///     template_hash: Some("hash-a".to_owned()),
///     ..FoundStamps::default()
/// };
/// assert_eq!(issue("0a1b", "hash-a", &[known.clone()]).epoch, 7);
/// assert_eq!(issue("0a1b", "hash-b", &[known.clone()]).epoch, 8);
/// assert_eq!(issue("another", "hash-b", &[known]).epoch, 1);
/// ```
pub fn issue(owner_uid: &str, template_hash: &str, known: &[FoundStamps]) -> Token {
    let ours = known.iter().filter_map(|stamps| {
        let token = stamps.token.found().filter(|token| token.uid == owner_uid)?;
        let is_same = stamps.template_hash.as_deref() == Some(template_hash);
        // Of two with one epoch, the one that knows the hash counts.
        Some((token.epoch, is_same))
    });
    match ours.max() {
        None => Token::new(owner_uid, 1),
        Some((epoch, true)) => Token::new(owner_uid, epoch),
        Some((epoch, false)) => Token::new(owner_uid, epoch + 1),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_read_strictly() {
        for text in [
            "",
            "/",
            "a",
            "a/",
            "/1",
            "a/x",
            "a/-1",
            "a/+1",
            "a/1/2",
            "a/1234567890123456789",
            "a/ 1",
        ] {
            assert_eq!(text.parse::<Token>(), Err(InvalidToken), "{text}");
        }
        assert_eq!("a/007".parse::<Token>().unwrap().epoch, 7);
        assert_eq!(Token::from_env(Some("")), Ok(None));
        assert_eq!(Token::from_env(None), Ok(None));
        assert_eq!(Token::from_env(Some("x")), Err(InvalidToken));
    }

    #[test]
    fn stamps_are_found_where_they_were_put() {
        let stamps = Stamps {
            token: Some(Token::new("a", 2)),
            generation: Some(3),
            config_hash: Some("c".to_owned()),
            intent_hash: Some("i".to_owned()),
            template_hash: Some("t".to_owned()),
        };
        for names in [Names::default(), Names::toolhive()] {
            let mut object = json!({"metadata": {"name": "x"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
            stamps.put_on(&mut object, &names);
            let found = FoundStamps::read(&object, &names);
            assert_eq!(found.generation, Stamp::Found(3));
            assert_eq!(found.config_hash.as_deref(), Some("c"));
            let strict = names.fence_annotation.is_some();
            assert_eq!(found.token.found().is_some(), strict);
            assert_eq!(found.intent_hash.is_some(), strict);
            let elsewhere = match names.stamp_on {
                StampOn::Object => FoundStamps::of_template(&object, &names),
                StampOn::PodTemplate => FoundStamps::of_object(&object, &names),
            };
            assert_eq!(elsewhere, FoundStamps::default());
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_from_what_is_not_there() {
        let names = Names::default();
        let read = |value: Value| {
            FoundStamps::of_object(
                &json!({"metadata": {"annotations": {"exuvia.dev/fence": value}}}),
                &names,
            )
            .token
        };
        assert_eq!(read(json!("")), Stamp::Absent);
        assert_eq!(read(json!("7")), Stamp::Unparsable);
        assert_eq!(read(json!("a/7")), Stamp::Found(Token::new("a", 7)));
        assert_eq!(FoundStamps::of_object(&json!({}), &names), FoundStamps::default());
    }

    #[test]
    fn a_deployment_that_was_deleted_does_not_start_epochs_over() {
        let of_target = FoundStamps {
            token: Stamp::Found(Token::new("a", 7)),
            ..FoundStamps::default()
        };
        assert_eq!(
            issue("a", "h", &[FoundStamps::default(), of_target.clone()]).epoch,
            8
        );
        let of_deployment = FoundStamps {
            template_hash: Some("h".to_owned()),
            ..of_target.clone()
        };
        assert_eq!(issue("a", "h", &[of_deployment, of_target]).epoch, 7);
    }
}
