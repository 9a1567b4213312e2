//! Ports of a Service that somebody changed so that ours no longer fit next to them: those give way.
//!
//! An apply merges ports by number and protocol. If somebody changes the number of our port, the server takes that for a port of their own,
//! and our next apply adds ours next to it: two ports with one name, or one without a name, which is refused for ever.

use exuvia_write::{Error, Writer};
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// Takes away the ports that ours cannot stand next to, under the lock of `live`. The Service as it is after that, if anything was written.
pub(crate) async fn make_room(
    writer: &Writer,
    api: &Api<DynamicObject>,
    live: &DynamicObject,
    intent: &Value,
) -> Result<Option<DynamicObject>, Error> {
    let Some(ports) = fitting(&live.data["spec"]["ports"], &intent["spec"]["ports"]) else {
        return Ok(None);
    };
    let written = writer
        .patch(api, live, |service| service.data["spec"]["ports"] = json!(ports))
        .await?;
    // Otherwise the ports that this patch set would stay when a later intent leaves them out (PITFALLS A42).
    let owned = writer.own_as_applied(api, &written.object).await?;
    Ok(Some(owned.object))
}

/// The ports with ours among them, and without those that ours cannot stand next to; `None` if all can. Pure.
fn fitting(live: &Value, ours: &Value) -> Option<Vec<Value>> {
    let (live, ours) = (live.as_array()?, ours.as_array()?);
    let key = |port: &Value| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
        (port["port"].as_u64(), protocol)
    };
    let others: Vec<&Value> = live
        .iter()
        .filter(|port| ours.iter().all(|own| key(own) != key(port)))
        .collect();
    let fits = |port: &&&Value| {
        let name = port["name"].as_str().filter(|name| !name.is_empty());
        name.is_some_and(|name| ours.iter().all(|own| own["name"] != name))
    };
    let staying: Vec<Value> = others.iter().filter(fits).map(|port| (*port).clone()).collect();
    (staying.len() < others.len()).then(|| ours.iter().cloned().chain(staying).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_ours_cannot_stand_next_to_give_way() {
        let ours = json!([{"name": "http", "port": 8080, "targetPort": "http", "protocol": "TCP"}]);
        let own = json!({"name": "http", "port": 8080, "targetPort": 1});
        let metrics = json!({"name": "metrics", "port": 9090});
        let unnamed = json!({"port": 1});
        let renumbered = json!({"name": "http", "port": 9999});
        let udp = json!({"name": "http", "port": 8080, "protocol": "UDP"});
        assert_eq!(fitting(&json!([own]), &ours), None);
        assert_eq!(fitting(&json!([own, metrics]), &ours), None);
        assert_eq!(fitting(&json!([metrics]), &ours), None);
        for clashing in [unnamed, renumbered, udp] {
            let expected = vec![ours[0].clone(), metrics.clone()];
            assert_eq!(fitting(&json!([clashing, metrics]), &ours), Some(expected));
        }
        assert_eq!(fitting(&Value::Null, &ours), None);
    }
}
