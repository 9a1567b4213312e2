//! The run config, frozen: an immutable ConfigMap named by its hash, and which of them are garbage.
//!
//! A mounted ConfigMap follows the object, so a restarted old pod reads new config, and a new pod may read a stale mount
//! (PITFALLS B25). A ConfigMap that never changes cannot be torn: the pod template names it, so each generation of pods has
//! its own. The hash check ([`read_settled`]) remains as a defence, and is all there is for a ConfigMap that does change.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use exuvia_write::{Adopted, Writer};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use serde_json::Value;
use tokio::time::Instant;

use crate::gate::strict::Config;
use crate::hash_bytes;

/// The label of a frozen config: its owner's name. [`garbage`] only ever names objects with it.
pub const FROZEN_LABEL: &str = "exuvia.dev/frozen-config";
/// 60 s: the kubelet syncs mounts once a minute, and its cache adds some.
pub const MOUNT_PATIENCE: Duration = Duration::from_secs(60);
/// How often a file is read again.
const POLL: Duration = Duration::from_millis(500);
/// Hexadecimal digits of the hash in a name.
const NAME_DIGITS: usize = 8;

/// A run config under its hash.
///
/// ```
/// use exuvia_rollout::FrozenConfig;
///
/// let frozen = FrozenConfig::new("till", "runconfig.json", "{}");
/// assert_eq!(frozen.name(), "till-run-44136fa3");
/// assert_eq!(frozen.hash().len(), 64);
/// let map = frozen.config_map("shop", None);
/// assert_eq!(map.immutable, Some(true));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenConfig {
    owner: String,
    key: String,
    text: String,
    hash: String,
}

impl FrozenConfig {
    /// The run config `text` of an owner of that name, under `key` in the ConfigMap.
    pub fn new(owner: impl Into<String>, key: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            owner: owner.into(),
            key: key.into(),
            hash: hash_bytes(text.as_bytes()),
            text,
        }
    }

    /// The hash of the text: what goes into the config-hash annotation and environment variable.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The ConfigMap's name: `<owner>-run-<8 digits of the hash>`.
    pub fn name(&self) -> String {
        format!("{}-run-{}", self.owner, &self.hash[..NAME_DIGITS])
    }

    /// The ConfigMap: immutable, labelled, and owned if an owner reference is given.
    pub fn config_map(&self, namespace: &str, owner: Option<OwnerReference>) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(namespace.to_owned()),
                labels: Some(BTreeMap::from([(FROZEN_LABEL.to_owned(), self.owner.clone())])),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            immutable: Some(true),
            data: Some(BTreeMap::from([(self.key.clone(), self.text.clone())])),
            ..ConfigMap::default()
        }
    }

    /// Whether a ConfigMap of our name holds exactly our text and can hold nothing else.
    pub fn is_held_by(&self, map: &ConfigMap) -> bool {
        let data = map.data.as_ref();
        map.immutable == Some(true)
            && map.metadata.deletion_timestamp.is_none()
            && data.is_some_and(|data| data.len() == 1 && data.get(&self.key) == Some(&self.text))
    }

    /// Makes the ConfigMap unless it is there. One of our name that holds anything else is an error: eight digits can coincide,
    /// and anyone can create an object.
    pub async fn ensure(
        &self,
        writer: &Writer,
        api: &Api<ConfigMap>,
        owner: Option<OwnerReference>,
    ) -> Result<Adopted<ConfigMap>, exuvia_write::Error> {
        let namespace = api.namespace().unwrap_or_default();
        let wanted = self.config_map(namespace, owner);
        writer
            .create_or_adopt(api, &wanted, |found| self.is_held_by(found))
            .await
    }
}

/// The names of frozen configs that no pod can need any more: labelled as `owner`'s, not in `keep`, and named by no template.
///
/// `templates` are the ReplicaSets and the Deployment itself, as JSON: those without replicas count, too, because a
/// rollback brings them back. `keep` is the config that is about to be used.
///
/// ```
/// use exuvia_rollout::{FrozenConfig, garbage};
/// use serde_json::json;
///
/// let maps = ["old", "used", "new"].map(|text| FrozenConfig::new("till", "run", text).config_map("shop", None));
/// let [_, used, new] = maps.clone().map(|map| map.metadata.name.unwrap());
/// let replica_set = json!({"spec": {"template": {"spec": {"volumes": [{"configMap": {"name": used}}]}}}});
/// let gone = garbage("till", &maps, &[replica_set], &[&new]);
/// assert_eq!(gone, [maps[0].metadata.name.clone().unwrap()]);
/// ```
pub fn garbage(owner: &str, maps: &[ConfigMap], templates: &[Value], keep: &[&str]) -> Vec<String> {
    let mut in_use: BTreeSet<&str> = keep.iter().copied().collect();
    for template in templates {
        collect_named(
            template.pointer("/spec/template/spec").unwrap_or(&Value::Null),
            &mut in_use,
        );
    }
    let is_ours = |map: &&ConfigMap| {
        let labels = map.metadata.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(FROZEN_LABEL));
        label.is_some_and(|label| label == owner) && map.metadata.deletion_timestamp.is_none()
    };
    let names = maps
        .iter()
        .filter(is_ours)
        .filter_map(|map| map.metadata.name.clone());
    names.filter(|name| !in_use.contains(name.as_str())).collect()
}

/// Every ConfigMap that a pod spec names, wherever in it: volumes, projected volumes, `env` and `envFrom`.
fn collect_named<'a>(value: &'a Value, named: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                if matches!(key.as_str(), "configMap" | "configMapRef" | "configMapKeyRef")
                    && let Some(name) = member.get("name").and_then(Value::as_str)
                {
                    named.insert(name);
                }
                collect_named(member, named);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_named(item, named)),
        _ => {}
    }
}

/// A run config as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadConfig {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// Its hash.
    pub hash: String,
    /// Whether it is the one that the pod was made for.
    pub config: Config,
}

/// Reads the run config until its hash is the one that the pod was made for, at most for `patience` ([`MOUNT_PATIENCE`]).
///
/// What was read last comes back: torn config is for the gate to refuse, after it has looked at the owner. Without `frozen`
/// the file is read once. A read that fails is tried again as well; the last error comes back.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use exuvia_rollout::{MOUNT_PATIENCE, read_settled};
///
/// let frozen = std::env::var("MCP_CONFIG_HASH").ok();
/// let read = || std::fs::read("/etc/runconfig/runconfig.json");
/// let config = read_settled(read, frozen.as_deref(), MOUNT_PATIENCE).await?;
/// # Ok(())
/// # }
/// ```
pub async fn read_settled(
    mut read: impl FnMut() -> io::Result<Vec<u8>>,
    frozen: Option<&str>,
    patience: Duration,
) -> io::Result<ReadConfig> {
    let frozen = frozen.filter(|hash| !hash.is_empty());
    let end = Instant::now() + patience;
    loop {
        let found = read().map(|bytes| {
            let hash = hash_bytes(&bytes);
            let config = Config::from_hashes(&hash, frozen);
            ReadConfig { bytes, hash, config }
        });
        let is_settled = match &found {
            Ok(found) => found.config == Config::Whole,
            Err(_) => frozen.is_none(),
        };
        if is_settled || Instant::now() >= end {
            return found;
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stale_mount_is_waited_for_and_a_torn_one_is_told() {
        let new = hash_bytes(b"new");
        let mut reads = 0;
        let stale_at_first = || {
            reads += 1;
            Ok(if reads < 5 {
                b"old".to_vec()
            } else {
                b"new".to_vec()
            })
        };
        let read = read_settled(stale_at_first, Some(&new), MOUNT_PATIENCE)
            .await
            .unwrap();
        assert_eq!((read.config, reads), (Config::Whole, 5));

        let began = Instant::now();
        let read = read_settled(|| Ok(b"newer".to_vec()), Some(&new), MOUNT_PATIENCE)
            .await
            .unwrap();
        assert_eq!(
            (read.config, read.bytes.as_slice()),
            (Config::Torn, b"newer".as_slice())
        );
        assert!(began.elapsed() >= MOUNT_PATIENCE);

        for frozen in [None, Some("")] {
            let read = read_settled(|| Ok(b"any".to_vec()), frozen, MOUNT_PATIENCE)
                .await
                .unwrap();
            assert_eq!(read.config, Config::Whole);
        }
        let missing = || Err(io::Error::from(io::ErrorKind::NotFound));
        assert!(read_settled(missing, Some(&new), MOUNT_PATIENCE).await.is_err());
    }

    #[test]
    fn what_any_template_names_is_kept_in_whatever_way_it_is_named() {
        let map = |text: &str| FrozenConfig::new("till", "k", text).config_map("shop", None);
        let name = |text: &str| FrozenConfig::new("till", "k", text).name();
        let mut foreign = map("foreign");
        foreign.metadata.labels = None;
        let other = FrozenConfig::new("other", "k", "x").config_map("shop", None);
        let maps = [
            map("volume"),
            map("projected"),
            map("env"),
            map("envFrom"),
            map("old"),
            foreign,
            other,
        ];
        let template = json!({"spec": {"replicas": 0, "template": {"spec": {
            "volumes": [{"configMap": {"name": name("volume")}},
                        {"projected": {"sources": [{"configMap": {"name": name("projected")}}]}}],
            "containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": name("env"), "key": "k"}}}]}],
            "initContainers": [{"envFrom": [{"configMapRef": {"name": name("envFrom")}}]}],
        }}}});
        assert_eq!(garbage("till", &maps, &[template], &[]), [name("old")]);
        assert_eq!(
            garbage("till", &maps[4..5], &[], &[&name("old")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_config_of_our_name_with_other_content_is_not_ours() {
        let frozen = FrozenConfig::new("till", "k", "text");
        let map = frozen.config_map("shop", None);
        assert!(frozen.is_held_by(&map));
        let mut mutable = map.clone();
        mutable.immutable = None;
        assert!(!frozen.is_held_by(&mutable));
        let mut other = map;
        other
            .data
            .as_mut()
            .unwrap()
            .insert("k".to_owned(), "other".to_owned());
        assert!(!frozen.is_held_by(&other));
    }
}
