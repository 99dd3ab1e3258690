// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// lister is a client of one kind of object.
type lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (kwatch.Interface, error)
}

// newInformer is an informer as client-go's factories make them, but without an
// index by namespace, which nobody asks for, and with its requests followed by p.
func newInformer[L runtime.Object](client any, of lister[L], example runtime.Object, selector string, p *pulse) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformerWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			p.ask(time.Now())
			l, err := of.List(ctx, o)
			if err != nil {
				if ctx.Err() == nil {
					p.fail(err, time.Now())
				}
				return nil, err
			}
			p.answered()
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (kwatch.Interface, error) {
			o.FieldSelector = selector
			p.ask(time.Now())
			w, err := of.Watch(ctx, o)
			if err != nil {
				if ctx.Err() == nil {
					p.fail(err, time.Now())
				}
				return nil, err
			}
			p.open(time.Now())
			return &stream{w, sync.OnceFunc(func() { p.close(time.Now()) })}, nil
		},
	}, client), example, cache.SharedIndexInformerOptions{})
}
