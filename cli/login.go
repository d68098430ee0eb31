package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// loginCmd prints a token of the local issuer.
func (a *app) loginCmd() *cobra.Command {
	var dev, mfa bool
	var as string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "login --dev",
		Short: "Print a token of the local stack's issuer",
		Long: "Prints a token that `compute dev`'s issuer gives to whoever asks on this machine:\n\n" +
			"  export COMPUTE_TOKEN=$(computectl login --dev --as operator)\n\n" +
			"A production system's tokens come from its own OIDC issuer.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !dev {
				return usagef("only --dev is offered: tokens of a production system come from its own OIDC issuer")
			}
			issuer := os.Getenv("COMPUTE_DEV_ISSUER")
			if issuer == "" {
				return usagef("COMPUTE_DEV_ISSUER is not set: . .dev/env first")
			}
			token, err := devToken(cmd.Context(), issuer, as, mfa, life)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, token)
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&dev, "dev", false, "of the local stack")
	f.StringVar(&as, "as", "owner", "whose token; the seed has owner, operator, viewer, oncall and owner2")
	f.BoolVar(&mfa, "mfa", false, "as if logged in with a second factor")
	f.DurationVar(&life, "for", 12*time.Hour, "how long the token lasts")
	return cmd
}

func devToken(ctx context.Context, issuer, as string, mfa bool, life time.Duration) (string, error) {
	body, err := json.Marshal(map[string]any{"sub": as, "mfa": mfa, "ttlSeconds": int64(life.Seconds())})
	if err != nil {
		return "", fmt.Errorf("ask the local issuer: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(issuer, "/")+"/token", bytes.NewReader(body))
	if err != nil {
		return "", usagef("COMPUTE_DEV_ISSUER: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the local issuer (is make dev running?): %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("read the local issuer's answer: %w", err)
	}
	var out struct{ Token string }
	if err := json.Unmarshal(answer, &out); err != nil || out.Token == "" {
		return "", fmt.Errorf("the local issuer answered %s: %s", resp.Status, strings.TrimSpace(string(answer)))
	}
	return out.Token, nil
}
