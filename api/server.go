package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// maxBody bounds a request's body.
const maxBody = 1 << 20

// mutationTimeout ends a mutation whose transaction cannot begin or go on; it
// is rolled back then.
const mutationTimeout = 30 * time.Second

// What a request's context keeps for its line in the log.
const (
	requestIDKey = "requestId"
	codeKey      = "code"
)

// Options are what a Server needs.
type Options struct {
	Store   *store.Store
	Authz   *authz.Engine
	Issuers []Issuer
	Log     *slog.Logger
	// RequestKey binds kept answers to their requests; all API processes share
	// it.
	RequestKey []byte
	// CallsPerSecond bounds an identity's calls on this process; 0 is 200.
	CallsPerSecond float64
	// SSH is the break-glass SSH.
	SSH SSHOptions
}

// Server is the HTTP API.
type Server struct {
	store      *store.Store
	authz      *authz.Engine
	authn      *authenticator
	log        *slog.Logger
	registry   *Registry
	requestKey []byte
	limits     *limiter
	metrics    *metrics
	denied     *limiter
	waiters    *waiters
	ssh        *sshIssuer
	engine     *gin.Engine
	openapi    []byte
	// streams ends when the process is to end.
	streams    context.Context
	endStreams context.CancelFunc
}

// New makes the API's server. It fails when a method of the table has no
// handler, or a rule of an input cannot be said in the OpenAPI document.
func New(o Options) (*Server, error) {
	s := &Server{store: o.Store, authz: o.Authz, authn: newAuthenticator(o.Issuers, o.Store), log: o.Log,
		registry: NewRegistry(), requestKey: o.RequestKey, metrics: newMetrics(o.Store)}
	if o.CallsPerSecond == 0 {
		o.CallsPerSecond = 200
	}
	s.streams, s.endStreams = context.WithCancel(context.Background())
	s.limits = newLimiter(o.CallsPerSecond)
	s.denied = newLimiter(deniedPerSecond)
	s.waiters = newWaiters(o.Store)
	var err error
	if s.ssh, err = newSSHIssuer(o.SSH); err != nil {
		return nil, err
	}
	for _, register := range []func(*Registry){registerNodes, registerMetal, registerSites, registerPools, registerReservations, registerAllocations, registerOperations, registerAccess, registerIdentity, s.ssh.register} {
		register(s.registry)
	}
	if missing := s.registry.missing(); len(missing) > 0 {
		return nil, fmt.Errorf("methods without a handler: %s", strings.Join(missing, ", "))
	}
	if s.openapi, err = OpenAPI(); err != nil {
		return nil, err
	}
	s.routes()
	return s, nil
}

// Handler is the server's HTTP handler.
func (s *Server) Handler() http.Handler { return s.engine }

func (s *Server) routes() {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.Use(s.observe, gin.CustomRecoveryWithWriter(io.Discard, func(g *gin.Context, v any) {
		writeProblem(g, s.log, fmt.Errorf("panic: %v", v))
	}))
	e.NoRoute(func(g *gin.Context) {
		writeProblem(g, s.log, fleet.Errorf(fleet.CodeNotFound, "no-such-method", "no such path; the methods are listed in /openapi.json"))
	})
	e.NoMethod(func(g *gin.Context) {
		p := fleet.Errorf(fleet.CodeNotFound, "wrong-http-method", "this path takes another HTTP method: methods are POST, documents are GET")
		p.Status = http.StatusMethodNotAllowed
		writeProblem(g, s.log, p)
	})
	for _, m := range fleet.Methods {
		e.POST(m.Path(), s.serve(s.registry.handlers[m.FullName()]))
	}
	e.GET("/api/compute/events/stream", s.stream)
	e.GET("/openapi.json", func(g *gin.Context) { g.Data(http.StatusOK, "application/json", s.openapi) })
	e.GET("/docs", s.docs)
	e.GET("/healthz", func(g *gin.Context) { g.Data(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n")) })
	e.GET("/readyz", s.ready)
	e.GET("/metrics", gin.WrapH(s.metrics.handler()))
	s.engine = e
}

// observe gives each request an id, traces it, logs it and counts it.
func (s *Server) observe(g *gin.Context) {
	id := store.NewID(fleet.KindRequest)
	g.Set(requestIDKey, id)
	g.Header("X-Request-Id", id)
	began := time.Now()
	end := traced(g, id)
	g.Next()
	end()
	took := time.Since(began)
	s.metrics.observe(g.FullPath(), g.Writer.Status(), took)
	s.log.InfoContext(g.Request.Context(), "request", "request", id, "method", g.Request.Method, "path", g.FullPath(),
		"status", g.Writer.Status(), "code", g.GetString(codeKey), "identity", g.GetString("identity"), "ms", took.Milliseconds())
}

// serve is the path of every method, in the order of checks: size and content
// type, who calls, the input, a role in the tenant, rate, then the handler's
// transaction.
func (s *Server) serve(h handler) gin.HandlerFunc {
	return func(g *gin.Context) {
		out, err := s.call(g, h)
		if err != nil {
			writeProblem(g, s.log, err)
			return
		}
		if v, ok := versionOf(out); ok {
			g.Header("ETag", strconv.Quote(strconv.FormatInt(v, 10)))
		}
		g.JSON(http.StatusOK, out)
	}
}

func (s *Server) call(g *gin.Context, h handler) (any, error) {
	ctx := g.Request.Context()
	body, err := readBody(g)
	if err != nil {
		return nil, err
	}
	caller, err := s.authn.caller(ctx, g.GetHeader("Authorization"))
	if err != nil {
		return nil, err
	}
	g.Set("identity", caller.Identity)
	in, wrong := h.decode(body)
	keys := g.Request.Header.Values("Idempotency-Key")
	mutates := h.method.Kind == fleet.KindMutation
	if mutates && !validKeys(keys) {
		wrong = append(wrong, fleet.FieldError{Field: "Idempotency-Key", Constraint: "one of 1 to 255 printable ASCII characters"})
	}
	if len(wrong) > 0 {
		return nil, invalidInput(wrong)
	}
	if err := h.check(in); err != nil {
		return nil, err
	}
	c := &Call{Caller: caller, TenantID: tenantOf(in), RequestID: g.GetString(requestIDKey), Method: h.method, srv: s}
	if mutates && len(keys) == 1 {
		c.Key, c.Body = keys[0], canonical(body)
	}
	if err := s.admit(ctx, c); err != nil {
		return nil, err
	}
	if !mutates {
		return h.run(ctx, c, in)
	}
	// A client that goes away cancels no work: what is begun is finished.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mutationTimeout)
	defer cancel()
	return h.run(ctx, c, in)
}

// admit checks that the identity holds a role in the tenant, before anything
// is looked up, and its rate.
func (s *Server) admit(ctx context.Context, c *Call) error {
	var err error
	if c.Roles, err = store.LoadRoles(ctx, s.store.Pool(), c.Identity); err != nil {
		return err
	}
	member := false
	for _, b := range c.Roles {
		member = member || b.TenantID == c.TenantID
	}
	if !member {
		c.decided = c.OnTenant()
		return c.refuse(ctx, "", false, fleet.Errorf(fleet.CodeAccessDenied, "no-role", "%s holds no role in tenant %s", c.Identity, c.TenantID))
	}
	if wait, ok := s.limits.allow(c.Identity); !ok {
		e := fleet.Errorf(fleet.CodeRateLimited, "rate", "too many calls of this identity; wait %s", wait.Round(time.Millisecond))
		e.RetryAfter = wait
		return e
	}
	return nil
}

func readBody(g *gin.Context) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(g.Writer, g.Request.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		e := fleet.Errorf(fleet.CodeInvalidInput, "too-large", "the body is larger than 1 MiB")
		e.Status = http.StatusRequestEntityTooLarge
		return nil, e
	}
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInvalidInput, "cut", "the body ended early")
	}
	kind, _, err := mime.ParseMediaType(g.GetHeader("Content-Type"))
	if err != nil || kind != "application/json" {
		e := fleet.Errorf(fleet.CodeInvalidInput, "not-json", "send a JSON object with Content-Type: application/json")
		e.Status = http.StatusUnsupportedMediaType
		return nil, e
	}
	return body, nil
}

// namedInDetail bounds how many fields a refusal's text names; fields lists all.
const namedInDetail = 10

func invalidInput(fields []fleet.FieldError) error {
	names := make([]string, 0, namedInDetail+1)
	for i, f := range fields {
		if i == namedInDetail {
			names = append(names, fmt.Sprintf("and %d more", len(fields)-i))
			break
		}
		if f.Field == "" {
			f.Field = "the body"
		}
		names = append(names, f.Field)
	}
	e := fleet.Errorf(fleet.CodeInvalidInput, "", "wrong: %s; fields says what each must be", strings.Join(names, ", "))
	e.Fields = fields
	return e
}

// validKeys says whether there is no Idempotency-Key, or one that can be used.
func validKeys(keys []string) bool {
	if len(keys) == 0 {
		return true
	}
	key := keys[0]
	if len(keys) > 1 || key == "" || len(key) > 255 {
		return false
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return false
		}
	}
	return true
}

// canonical is a body's one form, so that a repeat written otherwise is the
// same call.
func canonical(body []byte) []byte {
	v := jsontext.Value(bytes.Clone(body))
	if err := v.Canonicalize(); err != nil {
		return body
	}
	return v
}

// tenantOf reads the tenant of an input: every one has it.
func tenantOf(in any) string { return reflect.ValueOf(in).FieldByName("TenantID").String() }

// versionOf finds the version of the thing an answer is about.
func versionOf(out any) (int64, bool) {
	v := reflect.ValueOf(out)
	for _, name := range []string{"Node", "Site", "Pool"} {
		f := v.FieldByName(name)
		for f.IsValid() && f.Kind() == reflect.Pointer {
			f = f.Elem()
		}
		if f.IsValid() && f.Kind() == reflect.Struct {
			if version := f.FieldByName("Version"); version.IsValid() {
				return version.Int(), true
			}
		}
	}
	return 0, false
}
