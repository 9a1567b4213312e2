//! Fields of other objects that tell controllers to stop: read, frozen, and given back as they were.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use exuvia_api::{Flag, RETIRED_ANNOTATION, RETIRED_FLAGS_ANNOTATION, SavedFlag};
use exuvia_write::{ErrorClass, RetryPolicy, Writer};
use kube::api::{DynamicObject, GroupVersionKind};
use kube::discovery::{self, Scope};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::Error;
use super::path::Path;
use crate::lock::lock;

/// How long API servers are waited for that still have a policy which is gone.
const LETS_GO_WITHIN: Duration = Duration::from_secs(30);
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// A flag as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct FlagNow {
    /// The uid of the object that has it.
    pub uid: String,
    /// Its value; `None`: it is absent.
    pub value: Option<Value>,
}

/// What a flag goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagGoal {
    /// The migration is undone: as it was before.
    Undo,
    /// The migration has converged: as `thawed` says, else as it was before.
    Thaw,
}

/// What became of a flag that was to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It has the value that it must have.
    Done,
    /// Somebody had frozen it before us, or the value from before is the frozen one: there is nothing to give back.
    WasFrozen,
    /// Somebody gave it another value since: that is left as it is.
    LeftAlone,
}

/// A flag of a source that stays frozen when its migration is gone, with what it was before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetiredFlag {
    /// The flag, as the spec had it.
    pub flag: Flag,
    /// What it was.
    pub saved: SavedFlag,
}

/// What to do with a flag.
#[derive(Clone, Debug, PartialEq)]
enum Act {
    Nothing(Restored),
    Set(Value),
    Remove,
}

/// The value that was saved; `None`: it was absent.
fn from_before(saved: &SavedFlag) -> Option<&Value> {
    Some(&saved.value).filter(|value| !value.is_null())
}

/// What to save of a flag before it is frozen.
pub fn save_flag(index: usize, now: &FlagNow) -> SavedFlag {
    SavedFlag {
        index: i32::try_from(index).unwrap_or(i32::MAX),
        uid: now.uid.clone(),
        value: now.value.clone().unwrap_or_default(),
    }
}

/// The decision about giving a flag back.
fn restoring(now: Option<&Value>, flag: &Flag, saved: &SavedFlag, goal: FlagGoal) -> Act {
    let before = from_before(saved);
    if before == Some(&flag.frozen) {
        return Act::Nothing(Restored::WasFrozen);
    }
    let thawed = Some(&flag.thawed).filter(|value| !value.is_null() && goal == FlagGoal::Thaw);
    let wanted = thawed.or(before);
    if now == wanted {
        Act::Nothing(Restored::Done)
    } else if now != Some(&flag.frozen) {
        Act::Nothing(Restored::LeftAlone)
    } else {
        wanted.cloned().map_or(Act::Remove, Act::Set)
    }
}

/// Reads a flag.
pub async fn read_flag(client: &Client, flag: &Flag) -> Result<FlagNow, Error> {
    read_at(&api_of(client, flag).await?, flag).await
}

async fn read_at(api: &Api<DynamicObject>, flag: &Flag) -> Result<FlagNow, Error> {
    let path = path_of(flag)?;
    let object = object_of(api, flag).await?;
    Ok(FlagNow {
        uid: object.uid().unwrap_or_default(),
        value: value_at(&object, &path, flag)?,
    })
}

/// Where flags were found. An engine reads them at each of its looks; to look their kinds up each time was one request in ten.
#[derive(Debug, Default)]
pub struct FlagPlaces(Mutex<HashMap<(GroupVersionKind, String), Api<DynamicObject>>>);

impl FlagPlaces {
    /// As [`read_flag`], without a look at the kind where that is known. It is looked up again if nothing is found there.
    pub async fn read(&self, client: &Client, flag: &Flag) -> Result<FlagNow, Error> {
        let kind = GroupVersionKind::gvk(&flag.group, &flag.version, &flag.kind);
        let place = (kind, flag.namespace.clone());
        let known = lock(&self.0).get(&place).cloned();
        if let Some(api) = known {
            match read_at(&api, flag).await {
                Err(Error::NoObject { .. }) => {}
                read => return read,
            }
        }
        lock(&self.0).remove(&place);
        let api = api_of(client, flag).await?;
        let now = read_at(&api, flag).await?;
        lock(&self.0).insert(place, api);
        Ok(now)
    }
}

/// Gives a flag its frozen value, once what it was is saved. A flag that has it already is not written.
pub async fn freeze_flag(
    client: &Client,
    writer: &Writer,
    flag: &Flag,
    saved: &SavedFlag,
) -> Result<(), Error> {
    let path = path_of(flag)?;
    let api = api_of(client, flag).await?;
    let object = saved_object(&api, flag, saved).await?;
    value_at(&object, &path, flag)?;
    write(&api, writer, &object, |live| {
        // It leads to an object, as was just seen; if not any more, the write is not made and the next look says why.
        let _ = path.set(live, flag.frozen.clone());
    })
    .await
}

/// Gives a flag back. An object that is gone or was made again is an error that says so.
pub async fn restore_flag(
    client: &Client,
    writer: &Writer,
    flag: &Flag,
    saved: &SavedFlag,
    goal: FlagGoal,
) -> Result<Restored, Error> {
    let path = path_of(flag)?;
    let api = api_of(client, flag).await?;
    let object = saved_object(&api, flag, saved).await?;
    let now = value_at(&object, &path, flag)?;
    if let Act::Nothing(why) = restoring(now.as_ref(), flag, saved, goal) {
        return Ok(why);
    }
    // The decision is made again on each fresh read: somebody may write in between.
    let mut restored = Restored::Done;
    write(&api, writer, &object, |live| {
        let now = path.get(live).ok().flatten();
        restored = Restored::Done;
        match restoring(now, flag, saved, goal) {
            Act::Nothing(why) => restored = why,
            Act::Set(value) => drop(path.set(live, value)),
            Act::Remove => path.remove(live),
        }
    })
    .await?;
    Ok(restored)
}

/// Gives a flag back. Each API server lets go about a second after a binding is gone (PITFALLS D10).
pub(super) async fn restore_when_free(
    client: &Client,
    writer: &Writer,
    flag: &Flag,
    saved: &SavedFlag,
) -> Result<Restored, Error> {
    let since = Instant::now();
    loop {
        match restore_flag(client, writer, flag, saved, FlagGoal::Thaw).await {
            Err(error) if error.class() == ErrorClass::Denied && since.elapsed() < LETS_GO_WITHIN => {
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            restored => return restored,
        }
    }
}

/// Gives a flag whose object came with the copy its thawed value, if it is frozen.
pub async fn thaw_flag(client: &Client, writer: &Writer, flag: &Flag) -> Result<Restored, Error> {
    let now = read_flag(client, flag).await?;
    let saved = SavedFlag {
        uid: now.uid,
        ..SavedFlag::default()
    };
    restore_flag(client, writer, flag, &saved, FlagGoal::Thaw).await
}

/// Leaves a flag as it is, frozen, and notes on its object what it was: where no policy could say it.
pub async fn leave_flag(
    client: &Client,
    writer: &Writer,
    retired: &RetiredFlag,
    migration: &str,
) -> Result<(), Error> {
    let (flag, saved) = (&retired.flag, &retired.saved);
    let api = api_of(client, flag).await?;
    let object = saved_object(&api, flag, saved).await?;
    let noted = noted(std::slice::from_ref(retired));
    let note = |live: &mut DynamicObject| {
        live.annotations_mut().extend([
            (RETIRED_ANNOTATION.to_owned(), migration.to_owned()),
            (RETIRED_FLAGS_ANNOTATION.to_owned(), noted.clone()),
        ]);
    };
    writer.patch_with_retry(&api, &object, note).await?;
    Ok(())
}

/// Flags as an annotation has them.
pub(super) fn noted(flags: &[RetiredFlag]) -> String {
    serde_json::to_string(flags).unwrap_or_default()
}

async fn write(
    api: &Api<DynamicObject>,
    writer: &Writer,
    object: &DynamicObject,
    mut change: impl FnMut(&mut Value),
) -> Result<(), Error> {
    let written = writer.patch_with_retry(api, object, |live| {
        let Ok(mut value) = serde_json::to_value(&*live) else {
            return;
        };
        change(&mut value);
        if let Ok(changed) = serde_json::from_value(value) {
            *live = changed;
        }
    });
    written.await?;
    Ok(())
}

fn shown(flag: &Flag) -> String {
    let resource = format!("{}.{}", flag.kind, flag.group);
    let namespace = match flag.namespace.as_str() {
        "" => String::new(),
        namespace => format!("{namespace}/"),
    };
    format!(
        "{} {namespace}{} {}",
        resource.trim_end_matches('.'),
        flag.name,
        flag.path
    )
}

fn path_of(flag: &Flag) -> Result<Path, Error> {
    Path::parse(&flag.path).map_err(|source| Error::Path {
        flag: shown(flag),
        source,
    })
}

async fn api_of(client: &Client, flag: &Flag) -> Result<Api<DynamicObject>, Error> {
    let kind = GroupVersionKind::gvk(&flag.group, &flag.version, &flag.kind);
    let found = RetryPolicy::default()
        .read(|| discovery::pinned_kind(client, &kind))
        .await;
    let (resource, capabilities) = found.map_err(|error| {
        let is_unknown =
            matches!(error, kube::Error::Discovery(_)) || ErrorClass::of(&error) == ErrorClass::Missing;
        if is_unknown {
            Error::NoKind {
                flag: shown(flag),
                kind: format!("{} {}", kind.api_version(), kind.kind),
            }
        } else {
            Error::read(shown(flag))(error)
        }
    })?;
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), &flag.namespace, &resource),
    })
}

async fn object_of(api: &Api<DynamicObject>, flag: &Flag) -> Result<DynamicObject, Error> {
    let object = RetryPolicy::default().read(|| api.get_opt(&flag.name)).await;
    let object = object.map_err(|error| Error::read(shown(flag))(error))?;
    object.ok_or_else(|| Error::NoObject { flag: shown(flag) })
}

async fn saved_object(
    api: &Api<DynamicObject>,
    flag: &Flag,
    saved: &SavedFlag,
) -> Result<DynamicObject, Error> {
    let object = object_of(api, flag).await?;
    if object.uid().unwrap_or_default() == saved.uid {
        Ok(object)
    } else {
        Err(Error::Recreated { flag: shown(flag) })
    }
}

fn value_at(object: &DynamicObject, path: &Path, flag: &Flag) -> Result<Option<Value>, Error> {
    let blocked = || Error::NotAnObject { flag: shown(flag) };
    let whole = serde_json::to_value(object).map_err(|_| blocked())?;
    let value = path.get(&whole).map_err(|_| blocked())?;
    Ok(value.cloned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn flag() -> Flag {
        Flag {
            frozen: json!(true),
            thawed: json!("free"),
            ..Flag::default()
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "literals read better")]
    fn act(now: Option<Value>, before: Option<Value>, goal: FlagGoal) -> Act {
        let saved = save_flag(
            0,
            &FlagNow {
                uid: String::new(),
                value: before,
            },
        );
        restoring(now.as_ref(), &flag(), &saved, goal)
    }

    #[test]
    fn an_undone_flag_is_as_it_was() {
        assert_eq!(
            act(Some(json!(true)), Some(json!(3)), FlagGoal::Undo),
            Act::Set(json!(3))
        );
        assert_eq!(act(Some(json!(true)), None, FlagGoal::Undo), Act::Remove);
        let done = Act::Nothing(Restored::Done);
        assert_eq!(
            act(Some(json!(3)), Some(json!(3)), FlagGoal::Undo),
            done,
            "done before"
        );
        assert_eq!(act(None, None, FlagGoal::Undo), done);
    }

    #[test]
    fn a_thawed_flag_has_the_value_that_was_asked_for() {
        assert_eq!(
            act(Some(json!(true)), None, FlagGoal::Thaw),
            Act::Set(json!("free"))
        );
        let done = Act::Nothing(Restored::Done);
        assert_eq!(act(Some(json!("free")), None, FlagGoal::Thaw), done);
    }

    #[test]
    fn a_flag_that_somebody_froze_before_stays_frozen() {
        let nothing = Act::Nothing(Restored::WasFrozen);
        for goal in [FlagGoal::Undo, FlagGoal::Thaw] {
            assert_eq!(act(Some(json!(true)), Some(json!(true)), goal), nothing);
        }
    }

    #[test]
    fn what_somebody_set_meanwhile_is_left_alone() {
        let left = Act::Nothing(Restored::LeftAlone);
        assert_eq!(act(Some(json!(7)), Some(json!(3)), FlagGoal::Undo), left);
        assert_eq!(act(None, Some(json!(3)), FlagGoal::Undo), left);
    }
}
