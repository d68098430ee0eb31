package fleet

// JoinToken lets machines join a site, up to a number of times.
type JoinToken struct {
	ID        string            `json:"id"`
	SiteID    string            `json:"siteId"`
	PoolID    string            `json:"poolId,omitempty"`
	Labels    map[string]string `json:"labels"`
	MaxUses   int               `json:"maxUses"`
	Uses      int               `json:"uses"`
	ExpiresAt Time              `json:"expiresAt"`
	RevokedAt *Time             `json:"revokedAt,omitempty"`
	CreatedBy string            `json:"createdBy"`
	CreatedAt Time              `json:"createdAt"`
}

// JoinTokensCreateIn is the input of joinTokens/create.
type JoinTokensCreateIn struct {
	TenantIn
	SiteID     string            `json:"siteId" validate:"required,max=64,pattern=siteId" doc:"The site that machines join."`
	PoolID     *string           `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"The pool that they enter; of the same site and tenant."`
	TTLSeconds int64             `json:"ttlSeconds" validate:"required,min=60,max=2592000" doc:"The token's life, at most 30 days."`
	MaxUses    int               `json:"maxUses" validate:"required,min=1,max=10000" doc:"How many machines may join with it."`
	Labels     map[string]string `json:"labels,omitempty" validate:"omitempty,max=64,dive,keys,pattern=labelKey,endkeys" doc:"Operator labels of the nodes that join."`
}

// JoinTokenSecretOut is a new token with its secret, which is shown once.
type JoinTokenSecretOut struct {
	JoinToken JoinToken `json:"joinToken"`
	Secret    string    `json:"secret" secret:"true"`
}

// JoinTokensListIn is the input of joinTokens/list.
type JoinTokensListIn struct {
	TenantIn
	SiteID *string `json:"siteId,omitempty" validate:"omitempty,max=64,pattern=siteId" doc:"Only tokens of this site."`
	PoolID *string `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"Only tokens of this pool."`
	PageIn
}

// JoinTokensPage is a page of join tokens.
type JoinTokensPage struct {
	Items      []JoinToken `json:"items"`
	NextCursor string      `json:"nextCursor,omitempty"`
}

// JoinTokensRevokeIn is the input of joinTokens/revoke.
type JoinTokensRevokeIn struct {
	TenantIn
	JoinTokenID string `json:"joinTokenId" validate:"required,max=64,pattern=joinTokenId" doc:"The token."`
}

// JoinTokenOut is one join token.
type JoinTokenOut struct {
	JoinToken JoinToken `json:"joinToken"`
}

var identityMethods = []Method{
	{Group: "joinTokens", Name: "create", Kind: KindMutation, Permission: PermJoinTokensCreate, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: JoinTokensCreateIn{}, Out: JoinTokenSecretOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Make a token by which machines join a site; its secret is shown once."},
	{Group: "joinTokens", Name: "list", Kind: KindRead, Permission: PermJoinTokensRead, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: JoinTokensListIn{}, Out: JoinTokensPage{}, Summary: "List the tenant's join tokens, never their secrets."},
	{Group: "joinTokens", Name: "revoke", Kind: KindMutation, Permission: PermJoinTokensRevoke, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: JoinTokensRevokeIn{}, Out: JoinTokenOut{}, Errors: []Code{CodeNotFound},
		Summary: "Revoke a join token; machines that joined with it stay."},
}
