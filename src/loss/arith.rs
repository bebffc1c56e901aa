//! `+ - * /` and unary minus between expressions and numbers.

use std::iter::Sum;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::expr::{Binary, Expr, Unary};

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        operator!(@pair $trait, $method, Expr, Expr);
        operator!(@pair $trait, $method, Expr, &Expr);
        operator!(@pair $trait, $method, &Expr, Expr);
        operator!(@pair $trait, $method, &Expr, &Expr);
        operator!(@pair $trait, $method, Expr, f64);
        operator!(@pair $trait, $method, &Expr, f64);
        operator!(@pair $trait, $method, f64, Expr);
        operator!(@pair $trait, $method, f64, &Expr);
    };
    (@pair $trait:ident, $method:ident, $left:ty, $right:ty) => {
        impl $trait<$right> for $left {
            type Output = Expr;

            fn $method(self, other: $right) -> Expr {
                Expr::from(self).binary(Binary::$trait, other.into())
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl Neg for Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        self.unary(Unary::Neg)
    }
}

impl Neg for &Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        self.unary(Unary::Neg)
    }
}

impl Sum for Expr {
    /// Adds in pairs, so that the formula stays shallow; nothing adds up to 0.
    fn sum<I: Iterator<Item = Expr>>(terms: I) -> Expr {
        let mut terms: Vec<Expr> = terms.collect();
        while terms.len() > 1 {
            terms = terms
                .chunks(2)
                .map(|pair| match pair {
                    [a, b] => a + b,
                    rest => rest[0].clone(),
                })
                .collect();
        }
        terms.pop().unwrap_or_else(|| Expr::constant(0.0))
    }
}
