//! Under which uids the backend shows its objects: owner references may name them, and after the switch nobody knows them.

use exuvia_sweep::{Identity, ListError, Pages};
use exuvia_write::RetryPolicy;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};

use super::{Error, Observed, Route};

/// An object as the backend shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Alias {
    /// Its kind.
    pub kind: String,
    /// Its namespace, if it has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its uid. The object that is stored has another one.
    pub uid: String,
}

impl Route {
    /// Reads the uids of all objects of these kinds through the backend, page by page. `each` may be told of an object twice.
    ///
    /// # Errors
    ///
    /// [`Error::NoBackend`], or [`Error::Changed`]: then what was told is worth nothing.
    pub async fn alias_uids(&self, kinds: &[ApiResource], mut each: impl FnMut(Alias)) -> Result<(), Error> {
        self.check(kinds)?;
        let before = self.backend().await?;
        for kind in kinds {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), kind);
            let mut told = |identity: Identity| {
                each(Alias {
                    kind: kind.kind.clone(),
                    namespace: identity.namespace,
                    name: identity.name,
                    uid: identity.uid.unwrap_or_default(),
                });
            };
            match walk(Pages::of(&api).metadata(), &mut told).await {
                // A server need not know lists of metadata.
                Err(error) if has_code(&error, 406) => walk(Pages::of(&api), &mut told).await?,
                // Nor all kinds of its group: it shows no object of this one under another uid.
                Err(error) if has_code(&error, 404) && !self.is_shown(kind).await? => {}
                walked => walked?,
            }
        }
        if self.backend().await? == before {
            Ok(())
        } else {
            Err(Error::Changed {
                name: self.name.clone(),
            })
        }
    }

    /// Those of these kinds that the backend does not say that it serves.
    pub async fn unshown<'a>(&self, kinds: &'a [ApiResource]) -> Result<Vec<&'a ApiResource>, Error> {
        let mut unshown = Vec::new();
        for kind in kinds {
            if !self.is_shown(kind).await? {
                unshown.push(kind);
            }
        }
        Ok(unshown)
    }

    /// Whether the backend says that it serves this kind.
    async fn is_shown(&self, kind: &ApiResource) -> Result<bool, Error> {
        let read = || self.client.list_api_group_resources(&kind.api_version);
        let shown = RetryPolicy::default().read(read).await;
        let shown = shown.map_err(Error::reading(&kind.api_version))?;
        Ok(shown.resources.iter().any(|shown| shown.name == kind.plural))
    }

    /// The uid of the `APIService`, if it has a backend.
    async fn backend(&self) -> Result<String, Error> {
        match self.observe().await? {
            Observed::Backend(backend) => Ok(backend.uid()),
            _ => Err(Error::NoBackend {
                name: self.name.clone(),
            }),
        }
    }
}

async fn walk(mut pages: Pages, told: &mut impl FnMut(Identity)) -> Result<(), ListError> {
    while let Some(page) = pages.next().await? {
        for item in &page.items {
            told(item.identity());
        }
    }
    Ok(())
}

fn has_code(error: &ListError, code: u16) -> bool {
    matches!(error.source.as_ref(), kube::Error::Api(status) if status.code == code)
}
