//! What an apply would take away, handed over to another field manager before it.

use exuvia_write::{Apply, Writer};
use kube::Api;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::Intent;

/// Fields that are handed over: `manager` applies `body` before the gate's own apply.
#[derive(Debug, Clone, PartialEq)]
pub struct HandOver {
    /// Who has them from then on.
    pub manager: String,
    /// The partial object with these fields.
    pub body: Value,
}

/// Says what is handed over, from the live target, the intent's body and the gate's field manager.
pub type HandOvers = fn(&DynamicObject, &Value, &str) -> Option<HandOver>;

/// Hands over what there is, if the target is still as it was read, and returns the target as it is then.
pub(super) async fn carry_out(
    hand_overs: Option<HandOvers>,
    writer: &Writer,
    api: &Api<DynamicObject>,
    live: &DynamicObject,
    intent: &Intent,
) -> Result<Option<DynamicObject>, exuvia_write::Error> {
    let found = hand_overs.and_then(|find| find(live, intent.body(), writer.field_manager()));
    let Some(HandOver { manager, body }) = found else {
        return Ok(None);
    };
    let metadata = live.metadata.clone();
    let (uid, version) = (metadata.uid.unwrap_or_default(), metadata.resource_version);
    let how = Apply::default().force().only_at(uid, version.unwrap_or_default());
    writer.acting_as(manager).apply(api, &body, &how).await.map(Some)
}
